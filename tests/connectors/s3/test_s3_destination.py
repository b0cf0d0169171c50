"""The s3 destination: however often a delivery is repeated, by any process, its object is there once."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.s3_lab import S3Lab, staged
from lab.s3_lost_answers import refusing_conditions

from conduit_dagster import storage
from conduit_dagster.builtin_plugins import DESTINATIONS
from conduit_dagster.connectors.s3 import bucket, object_formats
from conduit_dagster.connectors.s3.destination import S3Destination
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import WriterTask

EVERY = [
    Record("1", {"a": "b"}, {"x": 1, "y": [None, 2.5]}, {"id": 1}, None, "create"),
    Record("2", {}, b"raw \xc3\xa9", b"k", {"x": 0}, "update"),
    Record(3, {}, None, None, {"x": 0}, "delete"),
    Record("4", {"é": "ü"}, {}, b"", None, "snapshot"),
]
ROWS: list[dict[str, Any]] = [
    {
        "operation": "create", "position": "1", "payload": '{"x":1,"y":[null,2.5]}', "key": '{"id":1}',
        "metadata": {"a": "b"},
    },
    {"operation": "update", "position": "2", "payload": "raw é", "key": "k", "metadata": {}},
    {"operation": "delete", "position": "3", "payload": "", "key": "", "metadata": {}},
    {"operation": "snapshot", "position": "4", "payload": "{}", "key": "", "metadata": {"é": "ü"}},
]  # fmt: skip


def test_the_name_in_a_pipeline_file_finds_it() -> None:
    assert DESTINATIONS.find("builtin:s3", {}) is S3Destination


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_an_object_has_the_records_of_a_delivery_in_order(s3: S3Lab, kind: str) -> None:
    destination = s3.destination(kind)
    destination.check()
    first, second = staged(destination, 1, EVERY[:3], EVERY[3:]), staged(destination, 2, EVERY[:1])
    for delivery in (first, second):
        assert not destination.holds(delivery)
        assert destination.publish(delivery) == delivery.target
        assert destination.holds(delivery)
    one, two = s3.names()
    assert one == f"{first.target['time']}-010101010101.{kind}" and two.endswith(f"-020202020202.{kind}")
    assert s3.rows() == [*ROWS, ROWS[0]]
    found = s3.bucket.read(f"{s3.prefix}/{one}")
    assert found is not None and found.metadata == {"conduit-delivery": first.hash}
    assert found.content_type == ("application/json" if kind == "json" else "application/octet-stream")


def test_lines_are_as_conduits() -> None:
    """Its names and their order."""
    lines, refused = object_formats.JsonLines().encode_block(EVERY[:1])
    head = r'{"Operation":"create","Position":"1","Payload":"{\"x\":1,\"y\":[null,2.5]}",'
    tail = r'"Key":"{\"id\":1}","Metadata":{"a":"b"}}'
    assert lines == f"{head}{tail}\n".encode() and not refused


def test_columns_are_as_conduits(s3: S3Lab) -> None:
    """The schema of its own reference file, ``destination/fixtures/reference-1.parquet``."""
    destination = s3.destination("parquet")
    destination.publish(staged(destination, 1, EVERY))
    file = pq.ParquetFile(pa.BufferReader(s3.content(s3.names()[0])))
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    assert [(one.path, one.physical_type, one.max_definition_level) for one in columns] == [
        ("operation", "BYTE_ARRAY", 0),
        ("position", "BYTE_ARRAY", 0),
        ("payload", "BYTE_ARRAY", 0),
        ("key", "BYTE_ARRAY", 0),
        ("metadata.key_value.key", "BYTE_ARRAY", 1),
        ("metadata.key_value.value", "BYTE_ARRAY", 1),
    ]
    assert file.metadata.row_group(0).column(0).compression == "GZIP"


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_repeat_writes_the_same_object(s3: S3Lab, kind: str) -> None:
    delivery = staged(s3.destination(kind), 1, EVERY, EVERY)
    s3.destination(kind).publish(delivery)
    names, before = s3.names(), s3.content(s3.names()[0])
    s3.destination(kind).publish(delivery)
    assert s3.names() == names and s3.content(names[0]) == before


@pytest.mark.parametrize("piece", [5 << 20, 32 << 20])
def test_a_repeat_is_no_change_for_a_reader(s3: S3Lab, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """As by a process that was frozen before its upload, and wakes up after another one finished the step."""
    if not s3.server.sets_times:
        pytest.skip("this server sets no times")
    monkeypatch.setattr(bucket, "_PIECE", piece)
    destination = s3.destination()
    delivery = staged(destination, 1, [Record("1", {}, {"i": 1, "x": "y" * (6 << 20)})])
    destination.publish(delivery)
    [name] = s3.names()
    s3.server.set_time(f"{s3.prefix}/{name}", 1_000)
    destination.publish(delivery)
    assert [one.modified for one in s3.bucket.objects(s3.prefix)] == [1_000_000]
    client = bucket.client_for(destination.settings.login)
    assert not client.list_multipart_uploads(Bucket=s3.bucket.name, Prefix=s3.prefix).get("Uploads")
    s3.put(name, b"of another writer")
    destination.publish(delivery)
    assert destination.holds(delivery) and s3.numbers() == [1]


def test_a_store_that_knows_no_conditions(s3: S3Lab) -> None:
    with refusing_conditions(s3.server.address) as address:
        destination = s3.destination(**{"aws.endpoint": address})
        destination.publish(staged(destination, 1, EVERY))
    assert s3.rows() == ROWS


def test_the_next_object_sorts_behind_whatever_the_clock_says(s3: S3Lab) -> None:
    destination = s3.destination()
    far = {"time": 4_000_000_000_000_000_000, "format": "json"}
    assert destination.target(far)["time"] == far["time"] + 1
    assert destination.target(destination.target(None))["time"] < far["time"]


def test_another_format_is_for_the_next_step(s3: S3Lab) -> None:
    """A prepared delivery is published as it was staged."""
    delivery = staged(s3.destination("json"), 1, EVERY)
    s3.destination("parquet").publish(delivery)
    assert s3.names()[0].endswith(".json") and s3.rows() == ROWS


def test_an_object_of_many_pieces(s3: S3Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 takes pieces of 5 MB or more, but for the last; nothing is visible before the last one."""
    monkeypatch.setattr(bucket, "_PIECE", 5 << 20)
    destination = s3.destination()
    delivery = staged(destination, 1, *[[Record(str(i), {}, {"i": i, "x": "y" * (4 << 20)})] for i in range(3)])
    seen = list[list[str]]()
    chunks = storage.chunks

    def watched(url: str) -> Iterator[bytes]:
        seen.append(s3.names())
        return chunks(url)

    monkeypatch.setattr(storage, "chunks", watched)
    destination.publish(delivery)
    assert seen == [[], [], []] and s3.numbers() == [0, 1, 2]


def test_each_body_has_its_hash(s3: S3Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a bucket with a default retention Amazon's S3 refuses one without; the servers here do not."""
    monkeypatch.setattr(bucket, "_PIECE", 5 << 20)
    events = bucket.client_for(s3.destination().settings.login).meta.events
    sent = list[Any]()

    def watched(request: Any, **_: Any) -> None:
        if request.method == "PUT":
            sent.append(request.headers.get("Content-MD5"))

    events.register("before-send.s3", watched)
    try:
        for name, data in (("a", b"1"), ("empty", b""), ("parts", b"x" * (6 << 20))):
            assert s3.bucket.put(f"{s3.prefix}/{name}", [data], {}, is_new=True)
    finally:
        events.unregister("before-send.s3", watched)
    bodies = (b"1", b"", b"x" * (5 << 20), b"x" * (1 << 20))
    hashes = [b64encode(hashlib.md5(body).digest()) for body in bodies]
    assert [one.encode() if isinstance(one, str) else one for one in sent] == hashes and s3.content("parts") == b"x" * (
        6 << 20
    )


def test_an_upload_that_fails_leaves_nothing(s3: S3Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_PIECE", 5 << 20)

    def data() -> Iterator[bytes]:
        yield b"x" * (11 << 20)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        s3.bucket.put(f"{s3.prefix}/a", data(), {})
    assert s3.names() == []
    client = bucket.client_for(s3.destination().settings.login)
    assert not client.list_multipart_uploads(Bucket=s3.bucket.name, Prefix=s3.prefix).get("Uploads")


def test_parts_of_several_row_groups_are_one_file(s3: S3Lab, tmp_path: Path) -> None:
    destination = s3.destination("parquet")
    big = [[Record(str(i), {}, {"i": i, "x": "y" * (1 << 20)}) for i in range(20 * n, 20 * n + 20)] for n in range(2)]
    destination.publish(staged(destination, 1, *big))
    assert s3.numbers() == list(range(40))
    assert pq.ParquetFile(pa.BufferReader(s3.content(s3.names()[0]))).num_row_groups == 4


@pytest.mark.parametrize(
    ("record", "what"), [(Record("1", {}, b"\xff"), "payload"), (Record("1", {}, {}, b"\xff"), "key")]
)
def test_raw_data_that_is_no_text_needs_parquet(s3: S3Lab, record: Record, what: str) -> None:
    """Conduit writes U+FFFD in its place."""
    [refusal] = s3.destination("json").writer(WriterTask(str(s3.root), 0, "t")).write([record])
    assert (refusal.nack.code, refusal.place) == ("format.refused", 0)
    assert refusal.nack.message == f"the {what} is not UTF-8 text: use the format parquet, which takes any bytes"
    assert not s3.destination("parquet").writer(WriterTask(str(s3.root), 0, "t")).write([record])


@pytest.mark.parametrize(
    ("setting", "code", "fix"),
    [
        ({"aws.bucket": "nix"}, "file.missing", "create it"),
        ({"aws.secretAccessKey": "wrong"}, "file.no_permission", "check aws.accessKeyId"),
        ({"aws.endpoint": "http://127.0.0.1:1"}, "file.unreachable", "aws.endpoint"),
    ],
)
def test_what_is_wrong_is_told(s3: S3Lab, setting: dict[str, str], code: str, fix: str) -> None:
    if "aws.secretAccessKey" in setting and not s3.server.checks_secrets:
        pytest.skip("this server takes any secret")
    with pytest.raises(TransientError) as caught:
        s3.destination(**setting).check()
    assert caught.value.code == code and fix in str(caught.value.fix)
    assert s3.server.secret not in json.dumps([str(caught.value), caught.value.fix])
