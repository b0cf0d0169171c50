"""``avro.encode`` and ``avro.decode``, with a registry in a folder and one behind HTTP."""

from __future__ import annotations

import base64
import decimal
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processors.avro_runs import AUTO, FIRST, WIRE, decode, encode, one
from processors.conftest import make
from pydantic import ValidationError

from conduit_dagster.processors.avro_encode import AvroEncode
from conduit_dagster.record import Record
from conduit_dagster.schemas.confluent_registry import Access, ConfluentRegistry
from conduit_dagster.schemas.schema_registry import FolderRegistry, NoSchemaError, inferred
from conduit_dagster.sdk import Nack

PAIR = json.dumps(
    {
        "type": "record",
        "name": "record",
        "fields": [{"name": "myString", "type": "string"}, {"name": "myInt", "type": "int"}],
    }
)


@pytest.fixture(params=["folder", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A registry of either kind, empty."""
    return str(tmp_path / "schemas") if request.param == "folder" else request.getfixturevalue("registry_server").url()


def registered(folder: Path, field: dict[str, Any]) -> Any:
    """The parsed schema of records with this field, in the registry as number 1."""
    schema = {"type": "record", "name": "record", "fields": [field]}
    assert FolderRegistry(str(folder)).register("example", json.dumps(schema)).id == 1
    return fastavro.parse_schema(schema)


def encoder(folder: Path, field: dict[str, Any]) -> AvroEncode:
    """An encoder of records with this field."""
    registered(folder, field)
    subject = make("avro.encode", {**FIRST, "url": str(folder)})
    assert isinstance(subject, AvroEncode)
    return subject


def test_a_registered_schema_gives_the_bytes_that_conduit_gives(url: str) -> None:
    registry = ConfluentRegistry(url, Access()) if "://" in url else FolderRegistry(url)
    assert registry.register("example", PAIR).id == 1
    record = Record("1", {}, None, {"myInt": 1, "myString": "bar"})
    record = one("avro.encode", record, {**FIRST, "url": url, "field": ".Key"})
    assert record.key == WIRE + b"\x06bar\x02"
    assert decode(record, url, field=".Key").key == {"myString": "bar", "myInt": 1}


def test_what_is_registered_on_the_way_comes_back(url: str) -> None:
    after = {"f": 2.3, "i": 1, "m": {"x": True, "n": None}, "s": "é", "l": [{"a": 1}, {"b": "x"}], "e": []}
    record = encode(Record("1", {}, dict(after)), url)
    assert record.after[:5] == WIRE
    assert encode(Record("2", {}, dict(after)), url).after == record.after
    assert encode(Record("3", {}, {"i": 1}), url).after[:5] == WIRE[:4] + b"\x02"
    assert decode(record, url).after == {**after, "l": [{"a": 1, "b": None}, {"a": None, "b": "x"}]}


NAME = st.from_regex("[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SIMPLE = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUE = st.recursive(SIMPLE, lambda inner: st.dictionaries(NAME, inner, max_size=3), max_leaves=6)


@given(st.dictionaries(NAME, VALUE, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_documents_come_back(tmp_path: Path, document: dict[str, Any]) -> None:
    place = str(tmp_path / "schemas")
    record = encode(Record("1", {}, dict(document)), place)
    assert decode(record, place).after == document


def test_within_a_document_it_is_base64(tmp_path: Path) -> None:
    place, field = str(tmp_path / "s"), ".Payload.After.d"
    record = encode(Record("1", {}, {"d": {"a": "x"}}), place, field=field)
    assert record.after == {"d": base64.b64encode(WIRE + b"\x02x").decode()}
    assert decode(record, place, field=field).after == {"d": {"a": "x"}}


def test_json_is_a_document_and_null_stays(tmp_path: Path) -> None:
    place = str(tmp_path / "s")
    assert encode(Record("1", {}, b'{"a": "x"}'), place).after == WIRE + b"\x02x"
    assert encode(Record("1", {}, None), place).after is None
    assert decode(Record("1", {}, None), place).after is None


@pytest.mark.parametrize("after", [{"a b": 1}, {"1": 1}, {"ü": 1}, {"n": 2**63}, b"raw", b"[1]"])
def test_what_avro_does_not_take_is_a_nack(tmp_path: Path, after: Any) -> None:
    found = encode(Record("1", {}, after), str(tmp_path / "s"))
    assert isinstance(found, Nack) and found.code == "avro.encode.invalid"
    assert not (tmp_path / "s").exists()


def test_what_does_not_fit_a_registered_schema(tmp_path: Path) -> None:
    FolderRegistry(str(tmp_path)).register("example", PAIR)
    more = {**FIRST, "url": str(tmp_path)}
    records = [Record("1", {}, {"myString": "x", "myInt": value}) for value in (1, "x", 1)]
    first, nack, last = make("avro.encode", more).process_block(records)
    assert isinstance(nack, Nack) and nack.code == "avro.encode.invalid" and "myInt" in nack.message
    assert isinstance(first, Record) and isinstance(last, Record)
    unknown = one("avro.encode", Record("1", {}, {}), {**more, "schema.preRegistered.version": "2"})
    assert isinstance(unknown, Nack) and unknown.code == "avro.unknown_schema"


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (b"", "avro.decode.invalid"),
        (b"\x01" + WIRE[1:] + b"\x02x", "avro.decode.invalid"),
        (WIRE[:3], "avro.decode.invalid"),
        (WIRE, "avro.decode.invalid"),
        (WIRE + b"\x02xy", "avro.decode.invalid"),
        (WIRE + b"\x7f", "avro.decode.invalid"),
        (WIRE[:4] + b"\x09\x02x", "avro.unknown_schema"),
        ({"a": 1}, "avro.decode.invalid"),
    ],
)
def test_what_is_no_avro_is_a_nack_and_stays_as_it_was(tmp_path: Path, after: Any, code: str) -> None:
    encode(Record("1", {}, {"a": "x"}), str(tmp_path))
    record = Record("1", {}, after)
    found = decode(record, str(tmp_path))
    assert isinstance(found, Nack) and found.code == code
    assert record.after == after


def test_logical_types_become_text(tmp_path: Path) -> None:
    kinds = {
        "t": {"type": "long", "logicalType": "timestamp-millis"},
        "d": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        "b": "bytes",
    }
    schema = {"type": "record", "name": "r", "fields": [{"name": n, "type": k} for n, k in kinds.items()]}
    assert FolderRegistry(str(tmp_path)).register("s", json.dumps(schema)).id == 1
    data = io.BytesIO(WIRE)
    data.seek(len(WIRE))
    value = {"t": 5, "d": decimal.Decimal("1.25"), "b": b"\xff"}
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    found = decode(Record("1", {}, data.getvalue()), str(tmp_path)).after
    assert found == {"t": "1970-01-01T00:00:00.005Z", "d": "1.25", "b": "/w=="}


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("timestamp-millis", 1704164645678, "2024-01-02T03:04:05.678Z"),
        ("timestamp-millis", 1704164645000, "2024-01-02T03:04:05Z"),
        ("timestamp-micros", 1704164645678900, "2024-01-02T03:04:05.6789Z"),
        ("local-timestamp-millis", 1704164640000, "2024-01-02T03:04:00"),
        ("local-timestamp-micros", 1704164645678900, "2024-01-02T03:04:05.6789"),
        ("timestamp-millis", -30610224000000, "1000-01-01T00:00:00Z"),
        ("timestamp-millis", -59011459200000, "0100-01-01T00:00:00Z"),
    ],
)
def test_timestamps_are_written_as_go_writes_them(tmp_path: Path, kind: str, value: int, text: str) -> None:
    schema = registered(tmp_path, {"name": "t", "type": {"type": "long", "logicalType": kind}})
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, {"t": value})
    assert decode(Record("1", {}, WIRE + data.getvalue()), str(tmp_path)).after == {"t": text}


HOLDS_A = {"type": "record", "name": "holds_a", "fields": [{"name": "a", "type": "double"}]}
ENUM = {"type": "enum", "name": "e", "symbols": ["X"]}
UUID = {"type": "string", "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", 5.5),
        ("long", 5.0),
        ("long", True),
        ("long", 2**63),
        ("int", 2**31),
        ("int", "5"),
        ("boolean", "no"),
        ("boolean", 1),
        ("double", "1.5"),
        ("double", True),
        ("float", 1e300),
        ({"type": "array", "items": "long"}, [1, 5.5]),
        ({"type": "array", "items": "long"}, {}),
        ({"type": "array", "items": "string"}, "abc"),
        ({"type": "map", "values": "boolean"}, {"a": 0}),
        ({"type": "map", "values": "string"}, []),
        ("boolean", None),
        ({"type": "long", "logicalType": "timestamp-millis"}, 5.5),
        ({"type": "record", "name": "r2", "fields": [{"name": "g", "type": "int"}]}, {"g": 1.5}),
        (["null", "long"], 5.5),
        ("null", 5),
        ("double", 2**60 + 1),
        ("double", 10**400),
        ("float", 2**24 + 1),
        (["null", "double"], 2**60 + 1),
        (["double", "long"], 2**60 + 1),
        (["long", "float"], 2**63 + 1),
        (["null", "float"], 1e300),
        (["null", {"type": "array", "items": "double"}], [0.5, 2**60 + 1]),
        ({"type": "array", "items": ["null", "double"]}, [None, 2**60 + 1]),
        (["null", {"type": "map", "values": "double"}], {"a": 2**60 + 1}),
        (["null", {"type": "record", "name": "r2", "fields": [{"name": "g", "type": "double"}]}], {"g": 2**60 + 1}),
        (
            {"type": "record", "name": "r2", "fields": [{"name": "g", "type": ["null", "r2", "double"]}]},
            {"g": {"g": 2**60 + 1}},
        ),
        ([{"type": "map", "values": "double"}, HOLDS_A], {"a": 2**60 + 1}),
        ([HOLDS_A, {**HOLDS_A, "name": "other"}], {"a": 2**60 + 1}),
        (["null", HOLDS_A, ENUM], {"a": 2**60 + 1}),
        (
            {
                "type": "record",
                "name": "r2",
                "fields": [
                    {"name": "e", "type": ENUM},
                    {"name": "g", "type": ["e", {"type": "map", "values": "double"}]},
                ],
            },
            {"e": "X", "g": {"a": 2**60 + 1}},
        ),
        (UUID, "not-uuid"),
        (UUID, 5),
        (["null", UUID], "not-uuid"),
        ({"type": "array", "items": UUID}, ["6f9619ff-8b86-d011-b42d-00c04fc964ff", ""]),
    ],
)
def test_no_value_is_encoded_as_another(tmp_path: Path, kind: Any, value: Any) -> None:
    """As in Conduit, a value of another type, or beyond the type's range, is a nack that names the field."""
    fits_not = Record("1", {}, {"f": value})
    [nack] = encoder(tmp_path, {"name": "f", "type": kind}).process_block([fits_not])
    assert isinstance(nack, Nack) and nack.code == "avro.encode.invalid" and " f" in nack.message
    assert fits_not.after == {"f": value}


@pytest.mark.parametrize(
    ("value", "text"), [("1E-10", "0.0000000001"), ("0", "0.0000000000"), ("-12.5", "-12.5000000000")]
)
def test_decimals_are_written_without_an_exponent(tmp_path: Path, value: str, text: str) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 10}
    data = io.BytesIO()
    fastavro.schemaless_writer(data, registered(tmp_path, {"name": "d", "type": kind}), {"d": decimal.Decimal(value)})
    found = decode(Record("1", {}, WIRE + data.getvalue()), str(tmp_path)).after
    assert found == {"d": text}


@pytest.mark.parametrize(
    "kind", [{"type": "bytes"}, {"type": "fixed", "name": "n.Price", "size": 4}], ids=["bytes", "fixed"]
)
def test_a_decimal_with_more_digits_than_its_precision_is_not_rounded(tmp_path: Path, kind: dict[str, Any]) -> None:
    price = {**kind, "logicalType": "decimal", "precision": 6, "scale": 2}
    registered(tmp_path, {"name": "d", "type": ["null", price]})
    length = b"" if kind["type"] == "fixed" else b"\x08"
    found = decode(Record("1", {}, WIRE + b"\x02" + length + b"\x02\x04hi"), str(tmp_path)).after
    assert found == {"d": "338433.05"}  # Conduit: 6768661/20


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", -(2**63)),
        ("int", 2**31 - 1),
        ("double", 3),
        ("float", 0.5),
        ({"type": "int", "logicalType": "date"}, "2024-01-02"),
        ({"type": "array", "items": "long"}, [1, 2]),
        ({"type": "array", "items": "string"}, ["a"]),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, [[1], []]),
        ({"type": "map", "values": {"type": "map", "values": "long"}}, {"a": {"b": 1}}),
        (["null", "long"], 5),
        ("double", 2**60),
        ("float", 2**40),
        (["null", "double"], 2**60),
        (["null", "double", "string"], "x"),
        (["int", "double"], 2**40),
        (["long", "double"], 2**60 + 1),
        (["null", "boolean", "double"], True),
        (["null", {"type": "array", "items": "double"}, {"type": "map", "values": "double"}], {"a": 2**60}),
        ({"type": "record", "name": "r2", "fields": [{"name": "g", "type": ["null", "r2"]}]}, {"g": {"g": None}}),
        ([{"type": "map", "values": "string"}, HOLDS_A], {"a": 2**60}),
        (["null", {"type": "map", "values": "long"}, HOLDS_A], {"b": 2**60 + 1}),
        (UUID, "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
        (["null", UUID], "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
        (["null", ENUM, UUID], "X"),
    ],
)
def test_what_fits_comes_back(tmp_path: Path, kind: Any, value: Any) -> None:
    [record] = encoder(tmp_path, {"name": "f", "type": kind}).process_block([Record("1", {}, {"f": value})])
    assert isinstance(record, Record) and decode(record, str(tmp_path)).after == {"f": value}


def test_without_a_url_it_is_the_projects() -> None:
    assert AvroEncode.travelling(AUTO, "/project") == {**AUTO, "url": "/project/.conduit/schemas"}
    assert AvroEncode.travelling({"url": "mine"}, "/project")["url"] == "/project/mine"
    assert AvroEncode.travelling({"url": "s3://b/x"}, "/project")["url"] == "s3://b/x"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"schema.strategy": "other"},
        {"schema.strategy": "autoRegister"},
        {"schema.strategy": "preRegistered", "schema.preRegistered.subject": "s"},
        {**FIRST, "schema.preRegistered.version": "0"},
        {**AUTO, "auth.basic.username": "u"},
        {**AUTO, "tls.client.key": "k"},
        {**AUTO, "field": ".Metadata.x"},
    ],
)
def test_settings_that_do_not_fit(more: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        make("avro.encode", more)


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@pytest.mark.parametrize("depth", [998, 5_000, 1_000_000])
def test_data_that_is_nested_too_deeply_is_a_nack(tmp_path: Path, depth: int) -> None:
    """Also where the compiled reader would end the process: its stack is the thread's."""
    FolderRegistry(str(tmp_path)).register("nodes", json.dumps(NODE))
    nack = decode(Record("1", {}, WIRE + b"\x02" * depth + b"\x00"), str(tmp_path))
    assert isinstance(nack, Nack) and nack.code == "avro.decode.invalid" and "nested too deeply" in nack.message


@pytest.mark.parametrize("depth", [20, 150])
def test_data_of_a_schema_that_contains_itself_comes_back(tmp_path: Path, depth: int) -> None:
    text = {"name": "text", "type": {"type": "bytes", "logicalType": "decimal", "precision": 900, "scale": 1}}
    FolderRegistry(str(tmp_path)).register("nodes", json.dumps({**NODE, "fields": [text, *NODE["fields"]]}))
    level = b"\x14" + b"\x00" * 9 + b"\x0f"
    document: Any = {"text": "1.5", "next": None}
    for _ in range(depth):
        document = {"text": "1.5", "next": document}
    data = WIRE + (level + b"\x02") * depth + level + b"\x00"
    assert decode(Record("1", {}, data), str(tmp_path)).after == document


def test_lists_have_one_type() -> None:
    def items(*values: Any) -> Any:
        return inferred({"l": list(values)})["fields"][0]["type"]["items"]

    assert items(1, 2) == "long" and items(1, 2.5) == "double"
    assert items(1, "a", None) == ["null", "long", "string"]
    assert items(None) == items() == ["null", "string"]
    with pytest.raises(NoSchemaError):
        inferred({"l": [{"a-b": 1}]})


def test_documents_of_one_shape_share_a_schema_and_each_must_fit(tmp_path: Path) -> None:
    values = [1, 2, 1 << 70, 3.5, None, True, "x", [1], {"b": 1}]
    alone = [encode(Record("1", {}, {"a": value}), str(tmp_path)) for value in values]
    block = make("avro.encode", {**AUTO, "url": str(tmp_path)}).process_block(
        [Record("1", {}, {"a": value}) for value in values]
    )
    assert [result.code for result in alone if isinstance(result, Nack)] == ["avro.encode.invalid"]
    assert [getattr(result, "after", "nack") for result in block] == [getattr(one, "after", "nack") for one in alone]
