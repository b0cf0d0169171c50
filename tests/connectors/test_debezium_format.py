"""``debezium/json`` (golden/format-debezium is the oracle of the whole envelope)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conduit_dagster.connectors.formats import make_format
from conduit_dagster.expressions import Clock
from conduit_dagster.processors.unwrap_debezium import UnwrapDebezium, UnwrapDebeziumSettings
from conduit_dagster.record import OPERATIONS, Record
from conduit_dagster.sdk import ProcessorContext


def written(record: Record, options: str = "") -> Any:
    """The line of one record."""
    lines, refused = make_format("debezium/json", options).encode_block([record])
    assert not refused
    return json.loads(lines)


def schemas(envelope: Any) -> dict[str, Any]:
    """By field."""
    return {field["field"]: field for field in envelope["schema"]["fields"]}


def test_of_one_payload_both_have_the_schema() -> None:
    for record in (Record("1", {}, {"a": 1}), Record("1", {}, None, None, {"a": 1}, "delete")):
        found = schemas(written(record))
        fields = [{"type": "double", "field": "a"}]
        assert [found[name]["fields"] for name in ("before", "after")] == [fields, fields]
    assert "fields" not in schemas(written(Record("1", {})))["after"]


def test_types() -> None:
    after = {"s": "x", "i": 1, "f": 1.5, "b": True, "n": None, "l": [[1]], "e": [], "d": {"x": {}}}
    found = {field["field"]: field for field in schemas(written(Record("1", {}, after)))["after"]["fields"]}
    assert {name: found[name]["type"] for name in after} == {
        "s": "string", "i": "double", "f": "double", "b": "boolean", "n": "string", "l": "array", "e": "array",
        "d": "struct",
    }  # fmt: skip
    assert found["l"]["items"] == {"type": "array", "optional": True, "items": {"type": "double"}}
    assert found["e"]["items"] == {"type": "string", "optional": True}
    assert found["d"]["fields"] == [{"type": "struct", "optional": True, "field": "x"}]


def test_raw_data_is_json_or_a_field() -> None:
    assert written(Record("1", {}, b'{"a": 1}'))["payload"]["after"] == {"a": 1}
    envelope = written(Record("1", {}, b"raw"))
    assert envelope["payload"]["after"] == {"opencdc.rawData": "cmF3"}
    assert schemas(envelope)["after"]["fields"] == [{"type": "bytes", "optional": True, "field": "opencdc.rawData"}]
    assert written(Record("1", {}, b"[1]"), "debezium.rawData.key=k")["payload"]["after"] == {"k": "WzFd"}
    assert written(Record("1", {}, b""))["payload"]["after"] is None


def test_time_and_name() -> None:
    assert written(Record("1", {"opencdc.readAt": "5123456"}))["payload"]["ts_ms"] == 5
    assert "ts_ms" not in written(Record("1", {"opencdc.readAt": "soon"}))["payload"]
    assert written(Record("1", {}), " debezium.schema.name=orders")["schema"]["name"] == "orders"
    assert "name" not in written(Record("1", {}))["schema"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_it_can_be_unwrapped_again(operation: str) -> None:
    record = Record("1", {"m": "x"}, {"a": [1, None]}, {"k": 1}, {"b": {}}, operation)
    wrapped = Record("1", {}, json.dumps(written(record)).encode(), {"k": 1})
    subject = UnwrapDebezium(UnwrapDebeziumSettings(), ProcessorContext("p", "p:x", Clock(0)))
    assert subject.process_block([wrapped]) == [record]


def test_another_option_is_refused() -> None:
    with pytest.raises(ValueError, match="no option 'schema'"):
        make_format("debezium/json", "schema=x")
