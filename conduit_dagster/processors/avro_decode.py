"""``avro.decode``: decode Avro data whose schema is in a registry."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import math
import uuid
from typing import Any, Final

import fastavro
from fastavro import _read_py  # pyright: ignore[reportPrivateUsage]
from fastavro.read import LOGICAL_READERS
from fastavro.types import Schema as Parsed
from typing_extensions import override

from conduit_dagster.field_reference import kind_of
from conduit_dagster.processors.common.avro import (
    ID_BYTES,
    MAGIC,
    AvroProcessor,
    AvroSettings,
    asking,
    contains_itself,
    parsed,
    raw_bytes,
)
from conduit_dagster.sdk import Example, ProcessError, ProcessorContext, Record


class AvroDecodeSettings(AvroSettings):
    """Settings of ``avro.decode``."""


class AvroDecode(AvroProcessor):
    """Decode Avro in Confluent's wire format: the data contains the schema's ID, and the registry has the schema.

    Bytes within the data become Base64 text; times, dates, decimals and UUIDs (logical types) become text, timestamps
    in RFC 3339, local ones without a zone. Data that can't be decoded is nacked, and so is a document; null stays null.
    An unreachable registry is an outage: the step is repeated.
    """

    name = "avro.decode"
    Settings = AvroDecodeSettings
    settings: AvroDecodeSettings
    examples = (Example("Data that is not Avro", {}, Record("1", {}, b"hello"), "avro.decode.invalid"),)

    def __init__(self, settings: AvroDecodeSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._schemas: dict[int, tuple[Parsed, bool]] = {}

    @override
    def process(self, record: Record) -> Record:
        value = self.value(record)
        if value is None:
            return record
        data = raw_bytes(value)
        if data is None:
            raise self._invalid(f"is {kind_of(value)}, not raw data")
        if data[:1] != MAGIC or len(data) <= ID_BYTES:
            raise self._invalid("does not begin with a zero byte and a schema's number")
        schema, may_be_deep = self._schema(int.from_bytes(data[1 : 1 + ID_BYTES], "big"))
        rest = io.BytesIO(data[1 + ID_BYTES :])
        read = _read_deep if may_be_deep and len(data) > _SHALLOW else fastavro.schemaless_reader
        try:
            found: Any = read(rest, schema, None)
        except RecursionError:
            raise self._too_deep() from None
        except Exception as error:  # invalid data may fail in any way
            raise self._invalid(f"can't be decoded: {type(error).__name__} {error}".rstrip()) from error
        if rest.read(1):
            raise self._invalid("goes on behind its data")
        if not isinstance(found, dict):
            raise self._invalid(f"holds {kind_of(found)}, not a record")
        try:
            document = _plain(found)
        except RecursionError:
            raise self._too_deep() from None
        self.put(record, document)
        return record

    def _schema(self, number: int) -> tuple[Parsed, bool]:
        """Return the schema with this ID, and whether it contains itself.

        Raises :class:`ProcessError` if it does not exist.
        """
        if number not in self._schemas:
            self._schemas[number] = self.remembering(number, lambda: self._asked(number))
        return self._schemas[number]

    def _asked(self, number: int) -> tuple[Parsed, bool]:
        found = parsed(asking(self.registry.by_id, number).text)
        schema = fastavro.parse_schema(_with_exact_decimals(found))
        return schema, contains_itself(schema)

    def _too_deep(self) -> ProcessError:
        return self._invalid("is nested too deeply")

    def _invalid(self, what: str) -> ProcessError:
        return ProcessError(f"{self.settings.field} {what}", code="avro.decode.invalid")


_SHALLOW: Final = 1000
"""Length of data that fastavro's compiled reader takes at any depth: each level has a byte or more."""
_read_deep: Final = _read_py.schemaless_reader
"""fastavro's reader in Python, at a tenth of the speed: it raises where the compiled one ends the process."""


_EXACT_DECIMAL: Final = "conduit-dagster-exact-decimal"
"""Logical type read by :func:`_exact_decimal`: fastavro rounds a decimal to its schema's precision."""


def _with_exact_decimals(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_exact_decimals(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    # without the mark of a parsed schema, so that it is parsed again
    copied = {key: _with_exact_decimals(inner) for key, inner in schema.items() if not key.startswith("__")}
    return {**copied, "logicalType": _EXACT_DECIMAL} if schema.get("logicalType") == "decimal" else copied


def _exact_decimal(data: bytes, writer_schema: Any = None, _: Any = None) -> decimal.Decimal:
    digits = decimal.Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
    return decimal.Decimal((digits.sign, digits.digits, -writer_schema.get("scale", 0)))


LOGICAL_READERS.update({f"{kind}-{_EXACT_DECIMAL}": _exact_decimal for kind in ("bytes", "fixed")})

_AS_IS: Final = frozenset({str, int, bool, type(None)})


def _plain(value: Any) -> Any:
    """Convert a value to types that a document can hold."""
    if isinstance(value, dict):
        return {key: inner if type(inner) in _AS_IS else _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [inner if type(inner) in _AS_IS else _plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat()
        text = text.rstrip("0") if value.microsecond else text  # as Go writes it
        return text if value.tzinfo is None else f"{text}Z"  # Avro's times are UTC, or local ones of no known zone
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ProcessError(f"it holds {value}, which JSON can't", code="avro.decode.invalid")
    return value
