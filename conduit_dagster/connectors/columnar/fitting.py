"""Columns of one schema as columns of another, where no value changes by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from conduit_dagster.connectors.columnar.columns import DataType, Schema, is_name

Table = Any
"""A ``pyarrow.Table`` or ``pyarrow.RecordBatch``."""

_types: Any = pa.types
_UNSIGNED: Final = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_WIDTHS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64, pa.float32(): 32, pa.float64(): 64}
_NAMED: Final = {
    # what is only null is text, as in Spark
    **{kind: pa.string() for kind in (pa.large_string(), pa.string_view(), pa.null())},
    **{kind: pa.binary() for kind in (pa.large_binary(), pa.binary_view())},
}


def fitted(rows: Table, schema: Schema, strict: bool) -> Any:
    """The rows with exactly the columns of ``schema``; those that are not there are null.

    None where that would change or lose a value: a column has no place there (with ``strict``), a kind that does not
    hold all of its values, or a null where none may be. Documents, one by one, then say which record it is.
    """
    names = rows.schema.names
    if len(set(names)) < len(names) or (strict and not set(names) <= set(schema.names)):
        return None
    columns: list[Any] = []
    for field in schema:
        made = _column(rows, field)
        if made is None:
            return None
        columns.append(made)
    return pa.table(columns, schema=schema)


def _column(rows: Table, field: Any) -> Any:
    place = rows.schema.get_field_index(field.name)
    known = place >= 0 and not _types.is_null(rows.schema.field(place).type)
    column = rows.column(place) if known else pa.nulls(rows.num_rows, field.type)
    if not field.nullable and column.null_count:
        return None
    if column.type == field.type:
        return column
    if not _holds(plain(column.type), field.type):
        return None
    try:
        return column.cast(field.type)
    except pa.ArrowException:
        return None


def _holds(kind: DataType, wider: DataType) -> bool:
    """Whether every value of a plain type is one of the other, and a cast finds those that are not."""
    if kind == wider:
        return True
    if kind in _WIDTHS and wider in _WIDTHS:
        return _types.is_integer(kind) == _types.is_integer(wider) and _WIDTHS[kind] <= _WIDTHS[wider]
    if _types.is_decimal(kind) and _types.is_decimal(wider):
        return kind.scale <= wider.scale and kind.precision - kind.scale <= wider.precision - wider.scale
    if _types.is_struct(kind) and _types.is_struct(wider):
        return [f.name for f in kind] == [f.name for f in wider] and all(
            _holds(a.type, b.type) and (b.nullable or not a.nullable) for a, b in zip(kind, wider, strict=True)
        )
    if _types.is_list(kind) and _types.is_list(wider):
        inner, outer = kind.value_field, wider.value_field
        return _holds(inner.type, outer.type) and (outer.nullable or not inner.nullable)
    return False


def plain(kind: DataType) -> DataType:
    """The type that holds the same values, without a choice of layout: one text, signed numbers, times in UTC."""
    if _types.is_dictionary(kind):
        return plain(kind.value_type)
    if _types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if _types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if _types.is_list(kind) or _types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)))
    return _NAMED.get(kind) or _UNSIGNED.get(kind) or kind


def kept(schema: Schema) -> Schema:
    """The columns of a new folder of files for such rows: each type plain, every column nullable."""
    return pa.schema([pa.field(field.name, plain(field.type)) for field in schema])


def storable(schema: Schema) -> Schema | None:
    """The columns of a new Delta table for such rows; None where one of them has no type or no name there."""
    made = kept(schema)
    names = [field.name.lower() for field in made]
    if len(set(names)) < len(names) or not all(is_name(name) for name in names):
        return None
    return made if all(_every(field.type, _is_stored) for field in made) else None


def readable(schema: Schema) -> Schema | None:
    """The columns of files that Spark reads, whatever the session's settings; None where one has no type there."""
    made = kept(schema)
    if len({field.name.lower() for field in made}) < len(made):
        return None
    return made if all(_every(field.type, _is_read) for field in made) else None


def documented(schema: Schema) -> list[str]:
    """The columns that documents of JSON can't fill."""
    return [field.name for field in schema if not _every(field.type, _is_stored)]


def _every(kind: DataType, holds: Callable[[DataType], bool]) -> bool:
    if _types.is_struct(kind):
        return kind.num_fields > 0 and all(_every(field.type, holds) for field in kind)
    return _every(kind.value_type, holds) if _types.is_list(kind) else holds(kind)


def _is_read(kind: DataType) -> bool:
    return kind == pa.binary() or _is_stored(kind)


def _is_stored(kind: DataType) -> bool:
    known = (pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
    return kind in known or kind in _WIDTHS or _types.is_decimal128(kind)
