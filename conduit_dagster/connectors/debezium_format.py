"""``debezium/json``: a record in Debezium's envelope, with a Kafka Connect schema derived from the record."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from conduit_dagster.record import READ_AT, Data, Document, Record

RAW_KEY: Final = "opencdc.rawData"
"""Field for raw data that is not a JSON document, unless ``debezium.rawData.key`` names another."""
_OPERATIONS: Final = {"create": "c", "update": "u", "delete": "d", "snapshot": "r"}
_STRUCT: Final = {"type": "struct", "optional": True}
_UNKNOWN: Final = {"type": "string", "optional": True}
"""Schema of null, and of the elements of an empty list."""
_TAIL: Final[list[dict[str, Any]]] = [
    {"type": "string", "field": "op"},
    {"type": "int64", "optional": True, "field": "ts_ms"},
    {
        "type": "struct",
        "optional": True,
        "fields": [
            {"type": "string", "field": "id"},
            {"type": "int64", "field": "total_order"},
            {"type": "int64", "field": "data_collection_order"},
        ],
        "field": "transaction",
    },
]
_document = msgspec.json.Decoder(dict[str, Any]).decode


def options_of(text: str) -> dict[str, str]:
    """Parse ``debezium.schema.name=orders,debezium.rawData.key=raw``. Raises ``ValueError`` for any other key."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if unknown := found.keys() - {"debezium.schema.name", "debezium.rawData.key"}:
        known = "debezium.schema.name and debezium.rawData.key"
        raise ValueError(f"debezium/json has no option {min(unknown)!r}: it has {known}")
    return found


def debezium(record: Record, schema_name: str = "", raw_key: str = RAW_KEY) -> Document:
    """Return the envelope. Its schema declares all numbers as doubles, as Conduit does, which has no other type.

    If only one of the two payloads exists, its schema is used for both.
    """
    before, after = _part(record.before, raw_key), _part(record.after, raw_key)
    fields = [
        _field("before", after if before is None else before, _STRUCT),
        _field("after", before if after is None else after, _STRUCT),
        _field("source", record.metadata),
        *_TAIL,
    ]
    operation = _OPERATIONS[record.operation]
    payload: Document = {"before": before, "after": after, "source": record.metadata, "op": operation}
    read_at = record.metadata.get(READ_AT, "")
    if read_at.isdecimal() and (milliseconds := int(read_at) // 1_000_000):
        payload["ts_ms"] = milliseconds
    schema: Document = {"type": "struct", "fields": fields}
    if schema_name:
        schema["name"] = schema_name
    return {"schema": schema, "payload": {**payload, "transaction": None}}


def _part(data: Data, raw_key: str) -> Document | None:
    if not isinstance(data, bytes):
        return data
    if not data:
        return None
    try:
        return _document(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {raw_key: data}


def _field(name: str, value: Any, nothing: Document = _UNKNOWN) -> Document:
    return {**(nothing if value is None else _schema(value)), "field": name}


def _schema(value: Any) -> Document:
    if isinstance(value, dict):
        fields = [_field(name, inner) for name, inner in value.items()]
        return {**_STRUCT, "fields": fields} if fields else _STRUCT
    if isinstance(value, list):
        return {"type": "array", "optional": True, "items": _schema(value[0]) if value else _UNKNOWN}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int | float):
        return {"type": "double"}
    if isinstance(value, bytes):
        return {"type": "bytes", "optional": True}
    return {"type": "string"} if isinstance(value, str) else _UNKNOWN
