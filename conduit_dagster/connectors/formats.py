"""Formats in which a destination writes records as lines: ``sdk.record.format`` and ``sdk.record.format.options``."""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import msgspec

from conduit_dagster.expressions import EvaluationError, compile_template, reads_key
from conduit_dagster.json_values import decode_json
from conduit_dagster.lazy_records import Payloads, payloads_of
from conduit_dagster.record import READ_AT, Data, Document, Envelope, Nack, Payload, Record

Refused = list[tuple[int, Nack]]
"""Records of a block that could not be encoded: index in the block and nack, in order."""

_encoder = msgspec.json.Encoder()
_encode = _encoder.encode
_encode_lines = _encoder.encode_lines


class Format(ABC):
    """Encoder of records as lines. Each line ends in a line feed; each format defines the content of its lines.

    A float that is NaN or infinite would be written as ``null``: refuse such records beforehand.
    """

    reads_key: bool = True
    """Whether the format reads ``record.key`` or ``record.position``."""

    def encode_block(self, records: list[Record]) -> tuple[bytes, Refused]:
        """Return the lines of the records that can be encoded, in order, and the nacks of the others."""
        try:
            return self._block(records), []
        except Exception:  # noqa: BLE001  # one record's fault: find it
            return self._one_by_one(records)

    @abstractmethod
    def _block(self, records: list[Record]) -> bytes:
        """Return the lines of all records; raise if one of them cannot be encoded."""

    def _one_by_one(self, records: list[Record]) -> tuple[bytes, Refused]:
        lines: list[bytes] = []
        refused: Refused = []
        for index, record in enumerate(records):
            try:
                lines.append(self._block([record]))
            except Exception as error:  # noqa: BLE001  # whatever a record holds is its own nack
                refused.append((index, nack_of(error)))
        return b"".join(lines), refused


class OpenCdcJson(Format):
    """``opencdc/json``: the whole record in Conduit's layout, raw data as Base64 text."""

    def _block(self, records: list[Record]) -> bytes:
        return self._of_payloads(records) if isinstance(records, Payloads) else self._of_records(records)

    def _of_payloads(self, records: Payloads) -> bytes:
        assert records.ids is not None
        operation, metadata = records.like.operation, msgspec.Raw(_encode(records.like.metadata))
        rows = zip(records.ids.positions, records.payloads, records.ids.keys, strict=True)
        return _encode_lines(
            [
                Envelope(str(position).encode(), operation, metadata, key, Payload(None, after))
                for position, after, key in rows
            ]
        )

    def _of_records(self, records: list[Record]) -> bytes:
        lines: list[Envelope] = []
        metadata: dict[str, str] | None = None
        encoded: Any = None
        for record in records:
            # the records of a split share their metadata until a processor replaces it
            if record.metadata is not metadata:
                metadata = record.metadata
                encoded = msgspec.Raw(_encode(metadata))
            payload = Payload(record.before, record.after)
            position = str(record.position).encode()
            lines.append(Envelope(position, record.operation, encoded, record.key, payload))
        return _encode_lines(lines)


class PayloadJson(Format):
    """``payload/json``: the content of ``.Payload.After``, a document as one line of JSON, raw data unchanged.

    Raw data need not be JSON. It is refused if it contains a line feed, since it would become several lines. A
    missing payload is written as ``null``.
    """

    reads_key = False

    def _block(self, records: list[Record]) -> bytes:
        payloads = payloads_of(records)
        if bytes in set(map(type, payloads)):
            payloads = [_line(payload) if type(payload) is bytes else payload for payload in payloads]
        return _encode_lines(payloads)


class PayloadAsJson(Format):
    """The template ``{{ toJson .Payload.After }}``: raw data becomes Base64 text in quotes."""

    reads_key = False

    def _block(self, records: list[Record]) -> bytes:
        return _encode_lines(payloads_of(records))


class DebeziumJson(Format):
    """``debezium/json``: the record in Debezium's envelope, with a Kafka Connect schema derived from it."""

    reads_key = False

    def __init__(self, options: str) -> None:
        found = options_of(options)
        self._name = found.get("debezium.schema.name", "")
        self._raw_key = found.get("debezium.rawData.key") or RAW_KEY

    def _block(self, records: list[Record]) -> bytes:
        return _encode_lines([debezium(record, self._name, self._raw_key) for record in records])


class Template(Format):
    """``template``: a Go template over the record.

    A line feed in its output is written unchanged, as in Conduit: such a record takes several lines.
    """

    def __init__(self, template: Callable[[Record], Any], names: frozenset[str]) -> None:
        self._template = template
        self.reads_key = reads_key(names)

    def _block(self, records: list[Record]) -> bytes:
        template = self._template
        lines = [template(record) for record in records]
        lines.append("")
        return "\n".join(lines).encode()


def make_format(name: str, options: str = "") -> Format:
    """Return the format with this name. ``options``: the template of ``template``, or the options of ``debezium/json``.

    Raises ``ValueError`` for an unknown name or option, and for a template that cannot be compiled.
    """
    if name not in _FORMATS:
        raise ValueError(_unknown(name))
    return _FORMATS[name](options)


def names() -> list[str]:
    """Return the names of all formats."""
    return list(_FORMATS)


_JSON_OF: Final[dict[str, Callable[[], Format]]] = {"after": PayloadAsJson, "record": OpenCdcJson}
"""Formats with the same output as the template ``{{ toJson … }}`` of that part, but many times faster."""


def _template(text: str) -> Format:
    if not text:
        raise ValueError("the format template needs sdk.record.format.options: a Go template over the record")
    compiled = compile_template(text)
    known = _JSON_OF.get(compiled.json_of or "")
    return Template(compiled, compiled.names) if known is None else known()


_FORMATS: Final[dict[str, Callable[[str], Format]]] = {
    "opencdc/json": lambda options: OpenCdcJson(),
    "payload/json": lambda options: PayloadJson(),
    "debezium/json": DebeziumJson,
    "template": _template,
}


def _unknown(name: str) -> str:
    known = ", ".join(names())
    close = difflib.get_close_matches(name, names(), n=1)
    return f"unknown format {name!r}: " + (
        f"did you mean {close[0]}? Known are {known}" if close else f"known are {known}"
    )


def _line(raw: bytes) -> msgspec.Raw:
    if b"\n" in raw:
        raise EvaluationError("the raw payload holds a line feed: decode it, or use the format opencdc/json")
    return msgspec.Raw(raw)


def nack_of(error: Exception) -> Nack:
    """Return the nack of a record that could not be encoded."""
    if isinstance(error, EvaluationError):
        return Nack("format.refused", str(error))
    return Nack("format.invalid", f"the record cannot be encoded: {type(error).__name__}: {error}")


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
_NANOSECONDS: Final = re.compile(r"[+-]?[0-9]{1,99}")


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
    if milliseconds := _milliseconds(record.metadata.get(READ_AT, "")):
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
        value = decode_json(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {raw_key: data}
    # as in Conduit, the JSON null is no payload
    return value if value is None or isinstance(value, dict) else {raw_key: data}


def _milliseconds(nanoseconds: str) -> int:
    """Return a time in milliseconds; 0 if the text is no number of 64 bits, which Conduit leaves out like 0."""
    found = int(nanoseconds) if _NANOSECONDS.fullmatch(nanoseconds) else 0
    return found // 1_000_000 if -(1 << 63) <= found < 1 << 63 else 0


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
