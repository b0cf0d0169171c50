"""Arrow rows as documents of JSON: every value as JSON holds it without loss, else as text."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conduit_dagster.connectors.columnar.columns import DataType
from conduit_dagster.record import Document

Batch = Any
"""A ``pyarrow.RecordBatch`` or ``pyarrow.Table``."""
Convert = Callable[[Any], Any]
_types: Any = pa.types
_compute: Any = pc
_BYTES = (_types.is_binary, _types.is_large_binary, _types.is_fixed_size_binary, _types.is_binary_view)
_TEXTUAL = (_types.is_date, _types.is_decimal, _types.is_time, _types.is_timestamp, _types.is_duration)
_SECONDS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def documents(batch: Batch) -> list[Document]:
    """A document per row, its fields in the columns' order.

    Decimals are text, exact; dates, times and instants are ISO 8601 text, instants in UTC; bytes are base64; durations
    are whole numbers in their own unit; a map is an object whose keys are text. What JSON has no number for is text as
    Spark writes it: ``NaN``, ``Infinity``, ``-Infinity``.
    """
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    columns = [_values(batch.column(i)) for i in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: Any) -> list[Any]:
    column = _textual(column)
    convert = _converter(column.type)
    values = column.to_pylist()
    if _types.is_floating(column.type) and _compute.all(_compute.is_finite(column)).as_py() is not False:
        return values
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _textual(column: Any) -> Any:
    """Columns whose text Arrow makes faster than Python, and exactly."""
    kind = column.type
    if _types.is_dictionary(kind):
        return _textual(column.cast(kind.value_type))
    if _types.is_date(kind) or _types.is_decimal(kind) or _types.is_time(kind):
        return column.cast(pa.string())
    if _types.is_timestamp(kind):
        return instants(column)
    if _types.is_duration(kind):
        return column.cast(pa.int64())
    return column


def instants(column: Any) -> Any:
    """Times as text: ``2024-05-01T12:30:00.000001Z``; without the ``Z`` where the column knows no zone."""
    kind = column.type
    text = column.cast(pa.timestamp(kind.unit)).cast(pa.string())
    iso = _compute.replace_substring(text, " ", "T")
    digits = _SECONDS[kind.unit]
    if digits:
        # no fraction where it is all zeros, as in RFC 3339
        iso = _compute.replace_substring_regex(iso, r"\.0+$", "")
    return iso if kind.tz is None else _compute.binary_join_element_wise(iso, pa.scalar("Z"), pa.scalar(""))


def _converter(kind: DataType) -> Convert | None:
    """What a value needs after ``to_pylist``; None where that gives what JSON holds already."""
    if _types.is_floating(kind):
        return _number
    if any(test(kind) for test in _BYTES):
        return lambda value: base64.b64encode(value).decode()
    if _types.is_struct(kind):
        return _struct(kind)
    if _types.is_map(kind):
        return _map(kind)
    if _is_list(kind):
        inner = _leaf(kind.value_type)
        return None if inner is None else lambda values: [None if v is None else inner(v) for v in values]
    return None


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_list(kind: DataType) -> bool:
    return _types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind)


def _struct(kind: DataType) -> Convert | None:
    inner = {field.name: found for field in kind if (found := _leaf(field.type))}
    if not inner:
        return None
    return lambda value: {k: inner[k](v) if k in inner and v is not None else v for k, v in value.items()}


def _map(kind: DataType) -> Convert:
    inner = _leaf(kind.item_type)
    return lambda pairs: {
        key if isinstance(key, str) else str(key): v if v is None or inner is None else inner(v) for key, v in pairs
    }


def _leaf(kind: DataType) -> Convert | None:
    """Inside structs, lists and maps: one value at a time, by way of a column of its own where Arrow makes the text."""
    if _types.is_dictionary(kind):
        return _leaf(kind.value_type)
    if any(test(kind) for test in _TEXTUAL):
        return lambda value: _textual(pa.array([value], kind))[0].as_py()
    return _converter(kind)
