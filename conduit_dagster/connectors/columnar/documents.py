"""Conversion of Arrow rows to JSON documents: every value as JSON if that is lossless, otherwise as text."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conduit_dagster.connectors.columnar.columns import DataType
from conduit_dagster.json_values import no_number
from conduit_dagster.record import Document

Batch = Any
"""A ``pyarrow.RecordBatch`` or ``pyarrow.Table``."""
_types: Any = pa.types
_compute: Any = pc


def documents(batch: Batch) -> list[Document]:
    """Return a document per row, with its fields in column order.

    Decimals are exact text; dates, times and instants are ISO 8601 text, instants in UTC; bytes are Base64; durations
    are integers in their own unit; UUIDs are text; a map is an object whose keys are text. Floats that JSON can't
    represent are text in Spark's notation: ``NaN``, ``Infinity``, ``-Infinity``. A date or an instant beyond the years
    that Arrow can format is the number of its units since 1970, such as ``3000000days``. Text that is not UTF-8
    contains surrogates, which every destination nacks.
    """
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    columns = [values(batch.column(i)) for i in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def values(column: Any) -> list[Any]:
    """Return the values of an array as JSON values; None for nulls."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in values(chunk)]
    if _types.is_dictionary(kind):
        return values(column.cast(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return _extensions(column)
    for tests, found in _KINDS:
        if any(test(kind) for test in tests):
            return found(column)
    return column.to_pylist()


def _extensions(column: Any) -> list[Any]:
    if column.type in _OBJECTS:
        return [value if value is None else _OBJECTS[column.type](value) for value in column.to_pylist()]
    return values(column.storage)


_OBJECTS: dict[DataType, Callable[[Any], Any]] = {pa.uuid(): str, pa.bool8(): bool}
"""Extension types whose values differ from those that they are stored as."""


def _floats(column: Any) -> list[Any]:
    found = column.to_pylist()
    if _compute.all(_compute.is_finite(column)).as_py() is not False:
        return found
    return [value if value is None or math.isfinite(value) else no_number(value) for value in found]


def _bytes(column: Any) -> list[Any]:
    return [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]


def _strings(column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode(errors="surrogateescape") for value in raw]


def _text(column: Any) -> list[Any]:
    return column.cast(pa.string()).to_pylist()


def _dates(column: Any) -> list[Any]:
    days = column.cast(pa.date32())
    return _within(_text(days), days.cast(pa.int32()), "days")


def _instants(column: Any) -> list[Any]:
    """Return texts like ``2024-05-01T12:30:00.000001Z``; without ``Z`` if there is no zone, without a zero fraction."""
    kind = column.type
    iso = _compute.replace_substring(column.cast(pa.timestamp(kind.unit)).cast(pa.string()), " ", "T")
    if kind.unit != "s":
        iso = _compute.replace_substring_regex(iso, r"\.0+$", "")
    if kind.tz is not None:
        iso = _compute.binary_join_element_wise(iso, pa.scalar("Z"), pa.scalar(""))
    return _within(iso.to_pylist(), column.cast(pa.int64()), kind.unit)


def _within(texts: list[Any], units: Any, unit: str) -> list[Any]:
    """Replace Arrow's out-of-range notes, which begin with ``<``, with the number of units and the unit."""
    if not any(text is not None and text.startswith("<") for text in texts):
        return texts
    numbers = units.to_pylist()
    return [f"{n}{unit}" if t is not None and t.startswith("<") else t for t, n in zip(texts, numbers, strict=True)]


def _structs(column: Any) -> list[Any]:
    names = [field.name for field in column.type]
    children = [values(child) for child in column.flatten()]
    rows = zip(*children, strict=True) if children else iter([()] * len(column))
    return _where_valid(column, [dict(zip(names, row, strict=True)) for row in rows])


def _lists(column: Any) -> list[Any]:
    return _where_valid(column, _pieces(column, values(column.flatten())))


def _maps(column: Any) -> list[Any]:
    # Arrow flattens lists only; a sliced map array still has all keys, and its offsets select its own
    ends = column.offsets.to_pylist()
    begin, count = ends[0], ends[-1] - ends[0]
    keys, items = (values(child.slice(begin, count)) for child in (column.keys, column.items))
    pairs = [(key if isinstance(key, str) else str(key), item) for key, item in zip(keys, items, strict=True)]
    return _where_valid(column, [dict(pairs[low - begin : high - begin]) for low, high in pairwise(ends)])


def _pieces(column: Any, flat: list[Any]) -> list[list[Any]]:
    found: list[list[Any]] = []
    start = 0
    for length in _compute.list_value_length(column).fill_null(0).to_pylist():
        found.append(flat[start : start + length])
        start += length
    return found


def _where_valid(column: Any, found: list[Any]) -> list[Any]:
    if not column.null_count:
        return found
    return [value if valid else None for value, valid in zip(found, column.is_valid().to_pylist(), strict=True)]


_LISTS = (
    _types.is_list,
    _types.is_large_list,
    _types.is_fixed_size_list,
    _types.is_list_view,
    _types.is_large_list_view,
)
_KINDS: list[tuple[Sequence[Callable[[DataType], bool]], Callable[[Any], list[Any]]]] = [
    ((_types.is_floating,), _floats),
    ((_types.is_string, _types.is_large_string, _types.is_string_view), _strings),
    ((_types.is_binary, _types.is_large_binary, _types.is_fixed_size_binary, _types.is_binary_view), _bytes),
    ((_types.is_date,), _dates),
    ((_types.is_decimal, _types.is_time), _text),
    ((_types.is_timestamp,), _instants),
    ((_types.is_duration,), lambda column: column.cast(pa.int64()).to_pylist()),
    ((_types.is_struct,), _structs),
    ((_types.is_map,), _maps),
    (_LISTS, _lists),
]
