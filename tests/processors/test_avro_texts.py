"""Times, decimals and bytes, which are text in a document: ``avro.encode`` writes what ``avro.decode`` reads."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processors.avro_runs import FIRST, WIRE, decode, one

from conduit_dagster.record import Nack, Record
from conduit_dagster.schemas.schema_registry import FolderRegistry

LATEST = datetime(9999, 12, 31)


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


PRICE = logical("bytes", "decimal", precision=9, scale=2)
SMALL = logical("fixed", "decimal", name="small", size=8, precision=18, scale=3)
FIXED = {"type": "fixed", "name": "three", "size": 3}
COLOR = {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}
DAY = logical("int", "date")
MILLIS = logical("long", "timestamp-millis")
MICROS = logical("long", "timestamp-micros")
LOCAL = logical("long", "local-timestamp-micros")
MOMENTS = st.datetimes(datetime(1, 1, 1), LATEST)
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (DAY, st.dates()),
    (logical("int", "time-millis"), st.times().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))),
    (logical("long", "time-micros"), st.times()),
    (MILLIS, MOMENTS.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=UTC))),
    (MICROS, MOMENTS.map(lambda at: at.replace(tzinfo=UTC))),
    (logical("long", "local-timestamp-millis"), MOMENTS.map(lambda at: at.replace(microsecond=0))),
    (LOCAL, MOMENTS),
    (PRICE, st.decimals(-9999999, 9999999, places=2)),
    (SMALL, st.decimals(-(10**14), 10**14, places=3)),
    ("bytes", st.binary()),
    (FIXED, st.binary(min_size=3, max_size=3)),
    (COLOR, st.sampled_from(["RED", "BLUE"])),
    (logical("string", "uuid"), st.uuids()),
    ("string", st.text()),
]


def pairs_of(kind: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    shapes = st.sampled_from(("alone", "null", "list", "map"))
    return st.tuples(shapes, values, st.lists(values, max_size=3), st.dictionaries(st.text(), values, max_size=3)).map(
        lambda drawn: {
            "alone": (kind, drawn[1]),
            "null": (["null", kind], drawn[1]),
            "list": ({"type": "array", "items": kind}, drawn[2]),
            "map": (["null", {"type": "map", "values": kind}], drawn[3]),
        }[drawn[0]]
    )


def schema_of(kind: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "v", "type": kind, **more}]})


def avro(schema: str, value: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(schema)), value)
    return WIRE + data.getvalue()


def encoded(folder: Path | str, schema: str, document: dict[str, Any]) -> Any:
    """What ``avro.encode`` makes of a document: bytes, or a nack."""
    FolderRegistry(str(folder)).register("example", schema)
    found = one("avro.encode", Record("1", {}, document), {**FIRST, "url": str(folder)})
    return found if isinstance(found, Nack) else found.after


@settings(deadline=None)
@given(st.one_of([pairs_of(*each) for each in VALUES]))
def test_what_is_decoded_is_encoded_again(pair: tuple[Any, Any]) -> None:
    kind, value = pair
    schema = schema_of(kind)
    data = avro(schema, {"v": value})
    with TemporaryDirectory() as folder:
        FolderRegistry(folder).register("example", schema)
        document = decode(Record("1", {}, data), folder).after
        assert encoded(folder, schema, document) == data


@pytest.mark.parametrize(
    ("kind", "given_", "written"),
    [
        (MICROS, "2024-01-02T03:04:05+02:00", datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)),
        (MILLIS, "2024-01-02T03:04:05.120000000Z", datetime(2024, 1, 2, 3, 4, 5, 120000, tzinfo=UTC)),
        (MICROS, 5, 5),
        (DAY, 5, date(1970, 1, 6)),
        (logical("long", "time-micros"), "03:04:05.5", time(3, 4, 5, 500000)),
        (PRICE, "-0.5", Decimal("-0.5")),
        (PRICE, "+12.300", Decimal("12.3")),
        (PRICE, 12, Decimal(12)),
        (["null", PRICE], -128, Decimal(-128)),
        (["string", MICROS], "2024-01-02T03:04:05Z", "2024-01-02T03:04:05Z"),
        ([MICROS, "null", "string"], "2024-01-02T03:04:05Z", "2024-01-02T03:04:05Z"),
        ([DAY, "string"], 5, 5),
        (["bytes", COLOR], "BLUE", "BLUE"),
        (["string", {"type": "array", "items": "bytes"}], ["AAH/"], [b"\x00\x01\xff"]),
    ],
)
def test_forms_of_text(tmp_path: Path, kind: Any, given_: Any, written: Any) -> None:
    schema = schema_of(kind)
    assert encoded(tmp_path, schema, {"v": given_}) == avro(schema, {"v": written})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (MILLIS, "2024-01-02T03:04:05.0001Z"),
        (MICROS, "2024-01-02T03:04:05"),
        (MICROS, "2024-02-30T03:04:05Z"),
        (MICROS, "2024-01-02"),
        (MICROS, "1704164645"),
        (LOCAL, "2024-01-02T03:04:05Z"),
        (DAY, "20240102"),
        (["null", DAY], "no date"),
        (logical("int", "time-millis"), "24:00:00"),
        (logical("int", "time-millis"), "03:04:05.0001"),
        (PRICE, "12.345"),
        (PRICE, "12345678.00"),
        (PRICE, "1e2"),
        (PRICE, "NaN"),
        (PRICE, 12.5),
        (PRICE, True),
        (logical("fixed", "decimal", name="tiny", size=1, precision=2, scale=0), "200"),
        ("bytes", "no Base64"),
        (FIXED, "abc"),
        (FIXED, "AAE="),
    ],
)
def test_other_texts_are_nacked(tmp_path: Path, kind: Any, value: Any) -> None:
    found = encoded(tmp_path, schema_of(kind), {"v": value})
    assert isinstance(found, Nack) and found.code == "avro.encode.invalid" and " v" in found.message


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("long", True, "v is a boolean, not long"),
        (["null", "long"], "x", "v is text, not null or long"),
        (MICROS, "2024-01-02", "v is text, not timestamp-micros, such as 2024-01-02T03:04:05.000006Z"),
        (FIXED, "AAE=", "v is text, not Base64 of 3 bytes"),
        (PRICE, 1.5, "v is a number, not a decimal as text, of 9 digits, 2 behind the point"),
    ],
)
def test_a_nack_tells_the_form(tmp_path: Path, kind: Any, value: Any, why: str) -> None:
    found = encoded(tmp_path, schema_of(kind), {"v": value})
    assert isinstance(found, Nack) and found.message.endswith(f" does not fit schema 1: {why}")


def test_a_text_beside_a_date_in_a_union(tmp_path: Path) -> None:
    """fastavro fails for a text that is no date."""
    assert encoded(tmp_path, schema_of([DAY, "string"]), {"v": "no date"}) == WIRE + b"\x02\x0eno date"


NESTED = {"type": "record", "name": "n", "fields": [{"name": "b", "type": ["bytes", "null"]}]}


@pytest.mark.parametrize(
    ("kind", "default", "written"),
    [
        ("bytes", "abcd", b"abcd"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (FIXED, "abc", b"abc"),
        (PRICE, "\u00ff\u0038", Decimal("-2.00")),
        (MICROS, 5, 5),
        ("string", "abcd", "abcd"),
        (NESTED, {"b": "abcd"}, {"b": b"abcd"}),
        ({"type": "array", "items": "bytes"}, ["abcd"], [b"abcd"]),
        ({"type": "map", "values": FIXED}, {"a": "abc"}, {"a": b"abc"}),
    ],
)
def test_a_default_of_bytes_is_no_base64(tmp_path: Path, kind: Any, default: Any, written: Any) -> None:
    """The schema has a character for each byte."""
    schema = schema_of(kind, default=default)
    assert encoded(tmp_path, schema, {}) == avro(schema_of(kind), {"v": written})


def test_a_default_that_is_no_bytes_harms_no_record_that_has_the_field(tmp_path: Path) -> None:
    schema = schema_of("bytes", default="\u20ac")
    assert encoded(tmp_path, schema, {"v": "aGk="}) == avro(schema_of("bytes"), {"v": b"hi"})


def test_a_type_that_is_named_again(tmp_path: Path) -> None:
    fields = [
        {"name": "a", "type": FIXED},
        {"name": "b", "type": ["null", "three"], "default": None},
        {"name": "c", "type": "three", "default": "abc"},
        {"name": "d", "type": COLOR},
        {"name": "e", "type": ["bytes", "color"]},
    ]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    document = {"a": "AAAA", "b": "AQEB", "d": "RED", "e": "BLUE"}
    written = {"a": bytes(3), "b": b"\1\1\1", "c": b"abc", "d": "RED", "e": "BLUE"}
    assert encoded(tmp_path, schema, document) == avro(schema, written)
