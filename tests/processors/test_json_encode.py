"""``json.encode``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conduit_dagster.record import Record

Run = Callable[..., list[Any]]
GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"


def test_golden_whole(run: Run) -> None:
    """Conduit's raw payload has the same content; ours keeps the order of keys and exact integers."""
    folder = GOLDEN / "json-encode-whole"
    if not folder.is_dir():
        pytest.skip(f"no golden cases at {GOLDEN}")
    documents = [json.loads(line) for line in (folder / "in.jsonl").read_bytes().splitlines()]
    expected = [json.loads(line) for line in (folder / "expected-out.jsonl").read_bytes().splitlines()]
    results = run("json.encode", {"field": ".Payload.After"}, *documents)
    for result, line in zip(results, expected, strict=True):
        raw = msgspec.convert(line["payload"]["after"], bytes)
        assert json.loads(result, parse_int=float) == json.loads(raw, parse_int=float)


def test_golden_nested(run: Run) -> None:
    """The field becomes Conduit's text, except for the order of keys; a missing one stays missing."""
    folder = GOLDEN / "json-encode-nested"
    if not folder.is_dir():
        pytest.skip(f"no golden cases at {GOLDEN}")
    documents = [json.loads(line) for line in (folder / "in.jsonl").read_bytes().splitlines()]
    expected = [json.loads(line) for line in (folder / "expected-out.jsonl").read_bytes().splitlines()]
    results = run("json.encode", {"field": ".Payload.After.addr"}, *documents)
    for result, line in zip(results, expected, strict=True):
        wanted = line["payload"]["after"]
        assert ("addr" in result) == ("addr" in wanted)
        assert json.loads(result.get("addr", "0")) == json.loads(wanted.get("addr", "0"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"b": 1, "a": [None, 1.5]}, b'{"b":1,"a":[null,1.5]}'),
        ({"n": 12345678901234567890, "ü": "<&>"}, '{"n":12345678901234567890,"ü":"<&>"}'.encode()),
        ({}, b"{}"),
        (b"raw", b'"cmF3"'),
        (None, None),
    ],
)
def test_a_payload_becomes_raw_data(run: Run, before: Any, after: Any) -> None:
    """Compact, in the order of the document; raw data as Conduit encodes it."""
    assert run("json.encode", {"field": ".Payload.After"}, before) == [after]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"v": {"b": 1, "a": 2}}, {"v": '{"b":1,"a":2}'}),
        ({"v": "s"}, {"v": '"s"'}),
        ({"v": False}, {"v": "false"}),
        ({"v": None}, {"v": None}),
        ({"w": 1}, {"w": 1}),
        (None, {}),
    ],
)
def test_a_field_becomes_text(run: Run, before: Any, after: Any) -> None:
    """Any value except null and missing ones."""
    assert run("json.encode", {"field": ".Payload.After.v"}, before) == [after]


@pytest.mark.parametrize("field", [".Payload.After", ".Payload.After.v"])
@pytest.mark.parametrize("value", ["\ud800", 10**5000, object()], ids=["surrogate", "digits", "object"])
def test_what_cannot_be_encoded_is_a_nack(run: Run, field: str, value: Any) -> None:
    """Alone, between its neighbours."""
    before, nack, after = run("json.encode", {"field": field}, {"v": 1}, {"v": value}, {"v": 2})
    assert nack.code == "json.encode.invalid"
    assert before in (b'{"v":1}', {"v": "1"})
    assert after in (b'{"v":2}', {"v": "2"})


def test_a_field_of_raw_data_is_unresolved(run: Run) -> None:
    """The nack says which processor to put before."""
    [nack] = run("json.encode", {"field": ".Payload.After.v"}, b"raw")
    assert nack.code == "field.unresolved"


def test_decoding_is_the_way_back(processor: Callable[..., Any]) -> None:
    """Encode and decode leave a document unchanged, and only the key's reads the key."""
    subject = Record(1, {}, {"b": [1, {"c": None}], "a": 2**70}, key={"k": 1})
    for field in (".Payload.After", ".Key"):
        encode, decode = (processor(name, {"field": field}) for name in ("json.encode", "json.decode"))
        assert encode.reads_key is (field == ".Key")
        decode.process_block(encode.process_block([subject]))
    assert subject == Record(1, {}, {"b": [1, {"c": None}], "a": 2**70}, key={"k": 1})
