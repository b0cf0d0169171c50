"""``unwrap.debezium``, ``unwrap.kafkaconnect`` and ``unwrap.opencdc``."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import check_loop, make
from pydantic import ValidationError

from conduit_dagster.change_marks import UNCHANGED_TOAST, is_truncate, unchanged_fields
from conduit_dagster.record import OPERATIONS, Record, copy, encode
from conduit_dagster.schemas.schema_registry import FolderRegistry
from conduit_dagster.sdk import Nack

NAMES = ("unwrap.debezium", "unwrap.kafkaconnect", "unwrap.opencdc")
CHANGE = {"before": None, "after": {"id": 1}, "source": {}, "op": "c"}


@pytest.mark.parametrize("case", ["unwrap-debezium", "unwrap-kafkaconnect", "unwrap-opencdc"])
def test_golden(golden: Callable[[str], None], case: str) -> None:
    golden(case)


def unwrapped(name: str, record: Record, **settings: str) -> Any:
    [result] = make(name, settings).process_block([record])
    return result if isinstance(result, Nack) else record


def debezium(**change: Any) -> Any:
    return unwrapped("unwrap.debezium", Record("1", {"m": "x"}, {"payload": {**CHANGE, **change}}))


def test_what_debezium_says_of_its_source_wins() -> None:
    source = {"a": 1, "deep": {"x": True, "n": None, "l": [1, {"y": 2}]}, "m": "y", "opencdc.readAt": "5"}
    found = debezium(source=source, ts_ms=1.5, transaction={"id": "t"}, other=1e21)
    assert found.metadata == {
        "m": "y",
        "opencdc.readAt": "5",
        "debezium.transaction.id": "t",
        "debezium.other": "1000000000000000000000",
        "a": "1",
        "deep.x": "true",
        "deep.l": '[1,{"y":2}]',
    }


@pytest.mark.parametrize(("op", "operation"), [("c", "create"), ("u", "update"), ("d", "delete"), ("r", "snapshot")])
def test_operations(op: str, operation: str) -> None:
    assert debezium(op=op).operation == operation
    assert debezium(op="$unset").operation == "update"


@pytest.mark.parametrize(
    "change", [{"op": "z"}, {"op": 1}, {"after": 5}, {"before": [1]}, {"ts_ms": "soon"}, {"ts_ms": True}]
)
def test_what_is_no_change_is_a_nack_and_stays_as_it_was(change: Any) -> None:
    record = Record("1", {"m": "x"}, {"payload": {**CHANGE, **change}}, b'{"payload": 1}')
    before = copy(record)
    found = unwrapped("unwrap.debezium", record)
    assert isinstance(found, Nack) and found.code == "unwrap.invalid"
    assert record == before


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b'{"id": 1}', {"id": 1}),
        (b'{"payload": {"id": 1}}', {"id": 1}),
        ({"id": 1}, {"id": 1}),
        (b"7", b"7"),
        (b"{", b"{"),
        (None, None),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_record_without_schemas_is_the_change_itself(key: Any, expected: Any, as_text: bool) -> None:
    """As converters with ``schemas.enable=false`` write it, and as it comes out of ``avro.decode``."""
    after: Any = json.dumps(CHANGE).encode() if as_text else dict(CHANGE)
    found = unwrapped("unwrap.debezium", Record("1", {}, after, key))
    assert found == Record("1", {}, {"id": 1}, expected)


ROW = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}, {"name": "t", "type": "string"}]}
SOURCE = {"type": "record", "name": "Source", "fields": [{"name": "table", "type": "string"}]}
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.orders",
    "fields": [
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {"type": "record", "name": "Source", "fields": [{"name": "table", "type": "string"}]},
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}
"""As Kafka Connect's Avro converter registers it."""


def test_what_a_registry_describes(tmp_path: Path) -> None:
    url, key = str(tmp_path), {"type": "record", "name": "Key", "fields": ROW["fields"][:1]}
    change = {"before": None, "after": {"id": 1, "t": UNAVAILABLE}, "source": {"table": "t"}, "op": "u", "ts_ms": 1}
    registry = FolderRegistry(url)
    parts: list[bytes] = []
    for schema, value in ((ENVELOPE, change), (key, {"id": 1})):
        data = io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
        number = registry.register(schema["name"], json.dumps(schema)).id
        parts.append(b"\0" + number.to_bytes(4, "big") + data.getvalue())
    record = Record("1", {}, parts[0], parts[1])
    for field in (".Payload.After", ".Key"):
        [record] = make("avro.decode", {"url": url, "field": field}).process_block([record])
    found = unwrapped("unwrap.debezium", record)
    metadata = {"opencdc.readAt": "1000000", "table": "t", UNCHANGED_TOAST: "t"}
    assert found == Record("1", metadata, {"id": 1}, {"id": 1}, operation="update")


UNAVAILABLE = "__debezium_unavailable_value"
UNTOUCHED: dict[str, Any] = {
    "text": UNAVAILABLE,
    "bytea": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    "hstore": f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}',
    "map": {UNAVAILABLE: UNAVAILABLE},
    "words, many": [UNAVAILABLE],
    "numbers": list(UNAVAILABLE.encode()),
}
"""Values that an update did not touch, by type."""


@pytest.mark.parametrize("wrap", [lambda change: {"payload": change}, dict, lambda change: json.dumps(change).encode()])
def test_what_an_update_did_not_touch_is_left_out(wrap: Callable[[Any], Any]) -> None:
    """Debezium has another value in its place, which would take the place of the stored one."""
    change = {**CHANGE, "op": "u", "after": {"id": 1, **UNTOUCHED, "n": None}}
    found = unwrapped("unwrap.debezium", Record("1", {"m": "x"}, wrap(change)))
    assert (found.operation, found.after) == ("update", {"id": 1, "n": None})
    assert found.metadata == {"m": "x", UNCHANGED_TOAST: 'text,bytea,hstore,map,"words, many",numbers'}
    assert unchanged_fields(found) == list(UNTOUCHED)


@pytest.mark.parametrize("name", UNTOUCHED)
def test_a_create_without_a_value_is_a_nack(name: str) -> None:
    """Debezium writes one, behind a delete, for an update of a key that did not touch a large value."""
    found = debezium(after={"id": 1, name: UNTOUCHED[name]})
    assert isinstance(found, Nack) and found.code == "unwrap.unavailable" and name in found.message


@pytest.mark.parametrize("key", [None, b'{"payload": {"id": 1}}'])
def test_a_truncate_is_a_delete_of_all_rows(key: Any) -> None:
    change = {"before": None, "after": None, "source": {"table": "t"}, "op": "t", "ts_ms": 1}
    found = unwrapped("unwrap.debezium", Record("1", {}, {"payload": change}, key))
    assert is_truncate(found)
    assert found.metadata == {"opencdc.readAt": "1000000", "table": "t", "postgres.truncate": "true"}


def test_a_text_is_raw_data() -> None:
    assert debezium(after="text").after == b"text"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b'{"payload": {"id": 1}}', {"id": 1}),
        ({"payload": 5, "schema": {}}, b"5"),
        ({"payload": None}, None),
        ({"payload": [1, "a"]}, b'[1,"a"]'),
        ({"id": 1}, {"id": 1}),
        (b"7", b"7"),
        (b"\xff", b"\xff"),
        (None, None),
    ],
)
@pytest.mark.parametrize("name", NAMES[:2])
def test_the_key_is_unwrapped_too(name: str, key: Any, expected: Any) -> None:
    assert unwrapped(name, Record("1", {}, {"payload": CHANGE}, key)).key == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("after", [None, b"", b"no json", b"[1]", b"5", b"\xff", {}, {"payload": 1}, b"[" * 100_000])
def test_anything_else_is_a_nack(name: str, after: Any) -> None:
    found = unwrapped(name, Record("1", {}, after))
    assert isinstance(found, Nack) and found.code == "unwrap.invalid"


@pytest.mark.parametrize("name", NAMES)
def test_a_field_within_the_payload(name: str) -> None:
    inner = {"payload": CHANGE, "operation": "create", "metadata": {}}
    found = unwrapped(name, Record("1", {}, {"deep": {"f": json.dumps(inner)}}), field=".Payload.After.deep.f")
    assert isinstance(found, Record)
    nack = unwrapped(name, Record("1", {}, b"raw"), field=".Payload.After.deep.f")
    assert isinstance(nack, Nack) and nack.code == "field.unresolved"
    with pytest.raises(ValidationError):
        make(name, {"field": ".Metadata." if name == "unwrap.opencdc" else ".Metadata.x"})


VALUE = st.sampled_from([None, True, 0, 2**70, 1.5, "", "x", "u", "t", "MQ==", "no base64!"]) | st.sampled_from(
    [{}, {"id": 1}, {"a": {"b": None}}, [1], UNTOUCHED]
)
PART = {
    "unwrap.debezium": ("before", "after", "source", "op", "ts_ms", "transaction"),
    "unwrap.kafkaconnect": ("schema",),
    "unwrap.opencdc": ("operation", "metadata", "key"),
}
USUAL = {
    "unwrap.debezium": {**CHANGE, "source": {"table": "t", "lsn": 5}, "ts_ms": 1},
    "unwrap.kafkaconnect": {"id": 1},
    "unwrap.opencdc": {"before": None, "after": {"id": 1}},
}
KEYS = st.sampled_from([None, b"", b"1", b' {"payload": {"id": 1}}', b"{", {"payload": "2"}, {"id": 1}])


@st.composite
def wrapped(draw: Any) -> tuple[str, list[Record]]:
    """A block of usual records with unusual ones among them: parts replaced or missing, at both levels."""
    name = draw(st.sampled_from(NAMES))
    records: list[Record] = []
    for i in range(draw(st.integers(1, 6))):
        outer: Any = {"operation": "update", "metadata": {"m": "y"}, "key": "MQ==", "payload": dict(USUAL[name])}
        for level in (outer["payload"], outer):
            level.update(draw(st.dictionaries(st.sampled_from(PART[name]), VALUE, max_size=2)))
            for gone in draw(st.lists(st.sampled_from([*PART[name], "payload"]), max_size=1)):
                level.pop(gone, None)
        after = draw(st.sampled_from([outer, outer, outer, json.dumps(outer).encode(), outer.get("payload")]))
        records.append(Record(i, {"m": "x"}, after, draw(KEYS), {"old": 1}))
    return name, records


@given(wrapped())
def test_a_block_becomes_what_each_record_becomes_alone(case: tuple[str, list[Record]]) -> None:
    name, records = case
    check_loop(name, {}, records)


DATA = st.none() | st.binary() | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers())


@given(st.sampled_from(OPERATIONS), st.dictionaries(st.text("ab"), st.text("xy")), DATA, DATA, DATA)
def test_what_opencdc_json_writes_is_unwrapped(
    operation: str, metadata: Any, after: Any, key: Any, before: Any
) -> None:
    inner = Record("of another", metadata, after, key, before, operation)
    outer = Record("own", {"gone": "1"}, encode(inner), b"gone")
    assert unwrapped("unwrap.opencdc", outer) == Record("own", metadata, after, key, before, operation)


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "upsert"},
        {"operation": None},
        {"metadata": None},
        {"metadata": [1]},
        {"payload": 5},
        {"key": 5},
        {"key": "no base64!"},
        {"payload": {"after": [1]}},
    ],
)
def test_what_is_no_opencdc_record_is_a_nack_and_stays_as_it_was(change: Any) -> None:
    inner = {"operation": "create", "metadata": {}, "key": None, "payload": {"after": None}, **change}
    record = Record("1", {"m": "x"}, inner, b"k")
    before = copy(record)
    found = unwrapped("unwrap.opencdc", record)
    assert isinstance(found, Nack) and found.code == "unwrap.invalid"
    assert record == before


def test_opencdc_takes_base64_and_places_as_conduit_does() -> None:
    """Line breaks in Base64, and a record in a metadata entry; padding that is too long is none."""
    inner = {"operation": "create", "metadata": {"a": "b"}, "key": "YW\r\nJj\n", "payload": {"after": None}}
    unwrapped_record = Record("1", {"a": "b"}, None, b"abc")
    assert unwrapped("unwrap.opencdc", Record("1", {}, inner)) == unwrapped_record
    outer = Record("1", {"rec": json.dumps(inner)}, b"raw")
    assert unwrapped("unwrap.opencdc", outer, field=".Metadata.rec") == unwrapped_record
    found = unwrapped("unwrap.opencdc", Record("1", {}, {**inner, "key": "YWJj===="}))
    assert isinstance(found, Nack) and found.code == "unwrap.invalid"


def test_json_as_lenient_as_conduit() -> None:
    """Control characters in text need no escape, in the field as in a key."""
    text = b'{"payload": {"op": "c", "before": null, "after": {"t": "x\ty"}, "source": {}}}'
    record = unwrapped("unwrap.debezium", Record("1", {}, text, b'{"payload": {"k": "x\ty"}}'))
    assert (record.after, record.key) == ({"t": "x\ty"}, {"k": "x\ty"})


def test_metadata_is_text() -> None:
    inner = {"operation": "create", "metadata": {"n": 1, "b": True, "l": [1]}, "payload": {}}
    assert unwrapped("unwrap.opencdc", Record("1", {}, inner)).metadata == {"n": "1", "b": "true", "l": "[1]"}
