"""Rows of a table's columns, made from documents or from other columns, without changing a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from conduit_dagster.connectors.columnar.columns import NAME_RULE, DataType, Schema, is_name
from conduit_dagster.connectors.columnar.documents import documents
from conduit_dagster.connectors.columnar.floats import has_infinity, has_large, rounds
from conduit_dagster.connectors.formats import nack_of
from conduit_dagster.readable import shortened
from conduit_dagster.record import Document, Nack

Table = Any
"""A ``pyarrow.Table`` or ``pyarrow.RecordBatch``."""

_types: Any = pa.types
_compute: Any = pc
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
    if not _is_distinct(_names(made)) or not all(is_name(field.name) for field in made):
        return None
    return made if all(_every(field.type, _is_stored) for field in made) else None


def readable(schema: Schema) -> Schema | None:
    """Return the columns of files that Spark reads with any session settings; None if Spark lacks a type."""
    made = kept(schema)
    if not _is_distinct(_names(made)):
        return None
    return made if all(_every(field.type, _is_read) for field in made) else None


def _names(fields: Iterable[Any]) -> Iterator[list[str]]:
    """Yield the names of the columns, and those of the fields of each object in them, at any depth."""
    fields = list(fields)
    yield [field.name for field in fields]
    for field in fields:
        kind = field.type
        while _types.is_list(kind):
            kind = kind.value_type
        if _types.is_struct(kind):
            yield from _names(kind)


def _is_distinct(names: Iterable[Sequence[str]]) -> bool:
    """Return whether names beside each other differ in more than case, which Delta and Spark do not tell apart."""
    return all(len({name.lower() for name in group}) == len(group) for group in names)


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


class _Misfit:
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
        if not self._strict:
            return None
        # a name of blanks alone is seen in quotes only
        field = f"{inside}{name}" if is_name(name) else f"{(inside + name)!r}: {NAME_RULE}"
        return self._nack("unknown_field", f"no column for the field {field}")

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


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Lines:
    """Documents of a block as lines of JSON, and by index the nacks of those that JSON can't hold."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.refused: dict[int, Nack] = {}
        self.places: Sequence[int] = range(len(documents))
        try:
            self.lines = [_encode(document) for document in documents]
        except Exception:  # noqa: BLE001  # one record's fault: find it
            self._one_by_one(documents)

    def _one_by_one(self, documents: Sequence[Document]) -> None:
        found: dict[int, bytes] = {}
        for place, document in enumerate(documents):
            try:
                found[place] = _encode(document)
            except Exception as error:  # noqa: BLE001  # whatever a record holds is its own nack
                self.refused[place] = nack_of(error)
        self.places, self.lines = list(found), list(found.values())


class RowReader:
    """Reader of JSON lines into rows of one schema. Converts no values except text to dates and times.

    A number with a fraction part, even ``1.0``, is not an integer. A fraction is rounded to the type of a double or
    float column; a whole number that the type does not have, and a number beyond its range, do not fit. A time with an
    offset is stored as the instant it denotes.
    """

    def __init__(self, schema: Schema, unknown_fields: Literal["refuse", "ignore"], plugin: str) -> None:
        """Nack codes begin with ``plugin``."""
        self.schema = schema
        self.unfillable = [field.name for field in schema if not _every(field.type, _is_stored)]
        """Columns that documents can't fill."""
        self._plugin = plugin
        self.strict = unknown_fields == "refuse"
        self._options = pj.ParseOptions(
            explicit_schema=self._as_read(),
            unexpected_field_behavior="error" if self.strict else "ignore",
        )

    def _as_read(self) -> Schema:
        # Arrow's reader takes only numbers for dates; text is cast afterwards
        schema = self.schema
        for i, field in enumerate(schema):
            if pa.types.is_date(field.type):
                schema = schema.set(i, field.with_type(pa.string()))
        return schema

    def read(self, lines: Sequence[bytes]) -> Table:
        """Return the rows of these lines. Raises ``pa.ArrowException`` if one of them does not fit."""
        data = b"\n".join(lines)
        read = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=read, parse_options=self._options)
        self._require_kept(table, lines)
        return table if table.schema == self.schema else table.cast(self.schema)

    def _require_kept(self, table: Table, lines: Sequence[bytes]) -> None:
        large = [chunk for column in table.columns for chunk in column.chunks if has_large(chunk)]
        # JSON has no infinity: Arrow's reader makes one of a number that is too large for the type
        if any(map(has_infinity, large)):
            raise pa.ArrowInvalid("a number is too large for its column")
        if large and any(rounds(_decode(line), self.schema) for line in lines):
            raise pa.ArrowInvalid("a whole number has more digits than its column holds")

    def misfits(self, lines: Sequence[bytes], first: int = 0) -> dict[int, str]:
        """Return the lines that do not fit, found by halving: index, and the reader's error for that line alone."""
        try:
            self.read(lines)
        except pa.ArrowException as error:
            if len(lines) == 1:
                return {first: str(error)}
            half = len(lines) // 2
            return self.misfits(lines[:half], first) | self.misfits(lines[half:], first + half)
        return {}

    def unfillable_nack(self) -> Nack:
        """Return the nack of every document, if there are columns that documents can't fill."""
        columns = ", ".join(self.unfillable)
        return Nack(
            f"{self._plugin}.unfillable", f"a document can't fill the columns {columns}; only rows with them can"
        )

    def row_nack(self, row: Table) -> Nack:
        """Return the nack of a single row that :func:`fitted` refuses and no document can stand for.

        It names the first column at fault. All columns may be null.
        """
        unknown = next((name for name in row.schema.names if name not in self.schema.names), None)
        if unknown is not None and self.strict:
            return Nack(f"{self._plugin}.unknown_field", f"no column for the row's column {unknown}")
        field = next((field for field in self.schema if _column(row, field) is None), None)
        if field is None:
            return self.unfillable_nack()
        own, value = row.schema.field(field.name).type, documents(row.select([field.name]))[0][field.name]
        what = f"the row's column {field.name} is {shortened(repr(value), _SHOWN)} of type {own}"
        return Nack(f"{self._plugin}.does_not_fit", f"{what}, and the table's column is of type {field.type}")

    def nack(self, document: Document, error: str) -> Nack:
        """Return the nack of a refused document. ``error``: the reader's message."""
        found = _Misfit(_fits, self.strict, self._plugin).find(document, self.schema)
        return found or Nack(f"{self._plugin}.does_not_fit", f"the document does not fit the table: {error}")


@lru_cache(256)
def _reader_of(kind: DataType) -> RowReader:
    return RowReader(pa.schema([("value", kind)]), "refuse", "value")


def _fits(value: Any, kind: DataType) -> bool:
    try:
        _reader_of(kind).read([_encode({"value": value})])
    except pa.ArrowException:
        return False
    return True
