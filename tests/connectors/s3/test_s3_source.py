"""The s3 source: each object once, and each change that a listing shows."""

from __future__ import annotations

from http.server import ThreadingHTTPServer

import pytest
from lab.http_server import QuietHandler, serving
from lab.s3_lab import S3Lab
from lab.s3_reading import ALL, Reader, told

from conduit_dagster.connectors import kept_lists
from conduit_dagster.connectors.s3.bucket import Bucket
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Limit, ReadOptions, ResumeState

TEN = Limit(10, 10**12)


def test_first_all_objects_by_key_then_each_change(s3: S3Lab) -> None:
    reader = Reader(s3)
    assert reader.step() == []
    s3.touch("b", b"1", 1_000)
    s3.touch("a/x", b"2", 2_000)
    assert told(reader.step()) == [("snapshot", "x", b"2"), ("snapshot", "b", b"1")]
    assert reader.step() == []
    s3.touch("d", b"3", 3_000)
    s3.touch("c", b"4", 4_000)
    s3.touch("b", b"5", 5_000)
    s3.remove("a/x")
    assert told(reader.step()) == [
        ("create", "d", b"3"),
        ("create", "c", b"4"),
        ("update", "b", b"5"),
        ("delete", "x", None),
    ]
    s3.touch("a/x", b"6", 6_000)
    s3.touch("b", b"5", 7_000)
    assert told(reader.step()) == [("create", "x", b"6"), ("update", "b", b"5")]
    assert reader.step() == []


def test_a_late_object_is_not_missed(s3: S3Lab) -> None:
    """An upload in parts has the time when it began; Conduit's connector asks for later times alone."""
    if not s3.server.sets_times:
        pytest.skip("this server sets no times")
    reader = Reader(s3)
    s3.touch("b", b"1", 2_000)
    reader.step()
    s3.touch("a", b"2", 1_000)
    assert told(reader.step()) == [("create", "a", b"2")]


def test_a_record_has_the_objects_metadata(s3: S3Lab) -> None:
    s3.put("a", b"\xff\n", ContentType="text/csv", Metadata={"by": "me"})
    [record] = Reader(s3).step()
    modified = next(s3.bucket.objects(s3.prefix)).modified
    assert record.metadata == {
        "conduit.source.connector.id": "p:in", "opencdc.readAt": "7", "opencdc.createdAt": f"{modified}000000",
        "s3.header.contentType": "text/csv", "by": "me",
    }  # fmt: skip
    assert record.after == b"\xff\n" and record.key == f"{s3.prefix}/a".encode()


@pytest.fixture
def early_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects leave positions once there are eight."""
    monkeypatch.setattr(kept_lists, "LEAVES_AT", 8)


@pytest.mark.usefixtures("early_lists")
@pytest.mark.parametrize("n", [1, 3])
def test_steps_within_a_limit_and_lists_of_what_left_positions(s3: S3Lab, n: int) -> None:
    """Objects in steps of ten, some changed on the way: positions stay small, and nothing comes twice or is lost."""
    reader = Reader(s3)
    for i in range(25):
        s3.touch(f"{i:02}", b"%d" % i, 1_000 + i)
    found = reader.step(TEN, n)
    s3.touch("03", b"new", 5_000)
    s3.remove("05")
    while step := reader.step(TEN, n):
        found += step
        assert len(step) <= 10 and len(reader.at["files"]) <= 20
    snapshots = [("snapshot", f"{i:02}", b"%d" % i) for i in range(25)]
    changes = [("update", "03", b"new"), ("delete", "05", None)]
    assert sorted(told(found), key=str) == sorted([*snapshots, *changes], key=str)
    assert told(found)[-1] == changes[-1]
    assert reader.at["read"] is not None and reader.source().counts(reader.at) == {"objects_read": 24}
    assert reader.source().lag(reader.at) == 0
    s3.touch("15", b"late", 6_000)
    assert reader.source().lag(reader.at) == 1
    assert told(reader.step()) == [("update", "15", b"late")]


def test_bytes_limit_a_step(s3: S3Lab) -> None:
    for name in "abc":
        s3.put(name, b"x" * 100)
    reader = Reader(s3)
    assert [len(reader.step(Limit(10, 150))) for _ in range(4)] == [1, 1, 1, 0]


def test_an_object_that_changes_before_it_is_read_comes_again(s3: S3Lab) -> None:
    s3.touch("a", b"1", 1_000)
    s3.touch("b", b"1", 1_000)
    reader = Reader(s3)
    source, start = reader.source(), reader.at
    reader.at = source.latest(start, ALL)
    [split] = source.split(start, reader.at, 1)
    s3.touch("a", b"2", 2_000)
    s3.remove("b")
    [block] = source.read(split, ReadOptions())
    assert told(block.records) == [("snapshot", "a", b"2"), ("delete", "b", None)]
    assert told(reader.step()) == [("update", "a", b"2"), ("delete", "b", None)]


@pytest.mark.usefixtures("early_lists")
def test_positions_many_steps_apart(s3: S3Lab) -> None:
    """As for a destination that was added late: the last change of each object, once."""
    reader = Reader(s3)
    start = reader.at
    for i in range(15):
        s3.touch(f"{i:02}", b"1", 1_000)
    reader.step(TEN)
    middle = reader.at
    reader.step()
    s3.touch("01", b"2", 2_000)
    s3.remove("02")
    s3.remove("14")
    reader.step()
    for i in range(20, 30):
        s3.touch(f"{i}", b"3", 3_000)
    reader.step()
    s3.touch("last", b"4", 4_000)
    reader.step()
    since_start, since_middle = (reader.between(at, reader.at, 2) for at in (start, middle))
    assert sorted(key for _, key, _ in told(since_start)) == sorted(s3.names())
    names = [key for _, key, _ in told(since_middle)]
    assert sorted(names) == sorted({*s3.names(), "01", "02"} - {f"{i:02}" for i in range(10) if i not in (1, 2)})
    assert ("update", "01", b"2") in told(since_middle) and ("delete", "02", None) in told(since_middle)


def test_the_bucket_is_listed_once_a_period(s3: S3Lab) -> None:
    reader = Reader(s3)
    source = s3.source(pollingPeriod="1h")
    s3.put("a", b"1")
    end = source.latest(reader.at, ALL)
    s3.put("b", b"1")
    assert source.latest(end, ALL) == end
    assert source.latest(end, ALL, source.horizon()) != end, "a run that drains it looks"


def test_a_run_that_drains_it_takes_no_later_object(s3: S3Lab) -> None:
    s3.touch("a", b"1", 1_000)
    source = s3.source()
    horizon = source.horizon()
    s3.touch("b", b"1", 2_000)
    end = source.latest(source.initial(), ALL, horizon)
    assert source.latest(end, ALL, horizon) == end
    assert len(source.split(source.initial(), end, 1)[0].detail["objects"]) == 1


def test_a_later_run_with_the_same_object_lists_anew(s3: S3Lab) -> None:
    """Another process has read on: by the listing of then, what came later would be gone."""
    for name in "abc":
        s3.touch(name, b"1", 1_000)
    reader, source = Reader(s3), s3.source(pollingPeriod="1h")
    source.latest(reader.at, Limit(1, 10**12))
    s3.touch("a", b"2", 2_000)
    s3.touch("d", b"3", 3_000)
    while reader.step():
        pass
    source.resume(ResumeState(reader.at, None, {}))
    assert source.latest(reader.at, ALL) == reader.at


def test_the_prefix_is_the_beginning_of_keys(s3: S3Lab) -> None:
    for name in ("orders-1", "orders/2", "other"):
        s3.put(name, b"1")
    assert [key for _, key, _ in told(Reader(s3, prefix=f"{s3.prefix}/orders").step())] == ["orders-1", "2"]


class _Archive(QuietHandler):
    def respond(self) -> None:
        self.answer(
            403, b"<Error><Code>InvalidObjectState</Code><Message>not valid for the storage class</Message></Error>"
        )


def test_an_archived_object_is_no_matter_of_rights(s3: S3Lab) -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Archive)) as server:
        address = {"aws.endpoint": f"http://127.0.0.1:{server.server_port}"}
        with pytest.raises(TransientError, match="not valid for the storage class") as caught:
            Bucket(s3.source(**address).settings).read("a")
    assert "restore the object" in str(caught.value.fix)
