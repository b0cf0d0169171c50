"""Conversion of columns from one schema to another without changing a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from conduit_dagster.connectors.columnar.columns import DataType, Schema, is_name
from conduit_dagster.readable import shortened
from conduit_dagster.record import Document, Nack

Table = Any
"""A ``pyarrow.Table`` or ``pyarrow.RecordBatch``."""

_types: Any = pa.types
_UNSIGNED: Final = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_WIDTHS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64, pa.float32(): 32, pa.float64(): 64}
_NAMED: Final = {
    # a column that is only null is text, as in Spark
    **{kind: pa.string() for kind in (pa.large_string(), pa.string_view(), pa.null())},
    **{kind: pa.binary() for kind in (pa.large_binary(), pa.binary_view())},
}


def fitted(rows: Table, schema: Schema, strict: bool) -> Any:
    """Return the rows with exactly the columns of ``schema``; missing ones are null.

    Returns None if that would change or lose a value: a column has no counterpart (with ``strict``), a type can't hold
    all of its values, or a null is not allowed. Converting one document at a time then shows which record it is.
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
    """Return whether the other type holds every value of a plain type, except for values that a cast rejects."""
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
    """Return the canonical type for the same values: one type of text, signed numbers, times in UTC."""
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
    """Return the columns of a new folder of files for such rows: all types plain, all columns nullable."""
    return pa.schema([pa.field(field.name, plain(field.type)) for field in schema])


def storable(schema: Schema) -> Schema | None:
    """Return the columns of a new Delta table for such rows; None if Delta lacks a type or forbids a name."""
    made = kept(schema)
    names = [field.name.lower() for field in made]
    if len(set(names)) < len(names) or not all(is_name(name) for name in names):
        return None
    return made if all(_every(field.type, _is_stored) for field in made) else None


def readable(schema: Schema) -> Schema | None:
    """Return the columns of files that Spark reads with any session settings; None if Spark lacks a type."""
    made = kept(schema)
    if len({field.name.lower() for field in made}) < len(made):
        return None
    return made if all(_every(field.type, _is_read) for field in made) else None


def documented(schema: Schema) -> list[str]:
    """Return the columns that JSON documents can't fill."""
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


_SHOWN = 40


class Misfit:
    """Search for the first field of a refused document that does not fit."""

    def __init__(self, fits: Callable[[Any, DataType], bool], strict: bool, plugin: str) -> None:
        """``fits``: whether a single value can be read as a type; ``strict``: every field needs a column.

        Nack codes begin with ``plugin``.
        """
        self._fits = fits
        self._strict = strict
        self._plugin = plugin

    def find(self, document: Document, fields: Any, inside: str = "") -> Nack | None:
        """Return the nack for the first misfit; None if everything fits. ``fields``: a schema or a struct type."""
        known = {field.name: field for field in fields}
        for name, value in document.items():
            found = self._value(value, known[name], inside + name) if name in known else self._unknown(inside, name)
            if found is not None:
                return found
        for name, field in known.items():
            if not field.nullable and name not in document:
                return self._nack("required", f"the required field {inside}{name} is missing")
        return None

    def _nack(self, what: str, message: str) -> Nack:
        return Nack(f"{self._plugin}.{what}", message)

    def _unknown(self, inside: str, name: str) -> Nack | None:
        why = "" if is_name(name) else " (and a column is not a valid column name)"
        return self._nack("unknown_field", f"no column for the field {inside}{name}{why}") if self._strict else None

    def _value(self, value: Any, field: Any, path: str) -> Nack | None:
        kind = field.type
        if value is None:
            return None if field.nullable else self._nack("required", f"the required field {path} is null")
        if pa.types.is_struct(kind) and isinstance(value, dict):
            return self.find(value, kind, path + ".")
        if pa.types.is_list(kind) and isinstance(value, list):
            found = (self._value(item, kind.value_field, f"{path}[{i}]") for i, item in enumerate(value))
            return next(filter(None, found), None)
        if self._fits(value, kind):
            return None
        return self._nack(
            "does_not_fit", f"the field {path} is {shortened(repr(value), _SHOWN)}, and its column is of type {kind}"
        )
