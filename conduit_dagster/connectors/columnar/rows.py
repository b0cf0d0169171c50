"""Conversion of documents to rows of a table by Arrow's JSON reader, a whole block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from conduit_dagster.connectors.columnar.columns import DataType, Schema
from conduit_dagster.connectors.columnar.fitting import Misfit, Table, documented
from conduit_dagster.connectors.formats import nack_of
from conduit_dagster.record import Document, Nack

_encode = msgspec.json.Encoder().encode


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

    A number with a fraction part, even ``1.0``, is not an integer. A number for a double or float column is rounded to
    that type, but one beyond its range does not fit; a time with an offset is stored as the instant it denotes.
    """

    def __init__(self, schema: Schema, unknown_fields: Literal["refuse", "ignore"], plugin: str) -> None:
        """Nack codes begin with ``plugin``."""
        self.schema = schema
        self.unfillable = documented(schema)
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
        # JSON has no infinity: Arrow's reader makes one of a number that is too large for the type
        if any(_has_infinity(chunk) for column in table.columns for chunk in column.chunks):
            raise pa.ArrowInvalid("a number is too large for its column")
        return table if table.schema == self.schema else table.cast(self.schema)

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

    def nack(self, document: Document, error: str) -> Nack:
        """Return the nack of a refused document. ``error``: the reader's message."""
        found = Misfit(_fits, self.strict, self._plugin).find(document, self.schema)
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


_types: Any = pa.types
_compute: Any = pc


def _has_infinity(array: Any) -> bool:
    kind = array.type
    if _types.is_floating(kind):
        return bool(_compute.any(_compute.is_inf(array)).as_py())
    if _types.is_struct(kind):
        return any(map(_has_infinity, array.flatten()))
    return _types.is_list(kind) and _has_infinity(array.flatten())


_ITEM = 16
"""Estimated bytes of an item in a list, and of a value without a fixed width, such as a map."""


def row_sizes(table: Any) -> Any:
    """Return the approximate bytes of each row, as a numpy array of int64."""
    sizes = np.full(table.num_rows, 1, np.int64)
    for column in table.columns:
        sizes += _sizes(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return sizes


def _sizes(array: Any) -> Any:
    kind = array.type
    if _types.is_string(kind) or _types.is_binary(kind) or _types.is_large_string(kind) or _types.is_large_binary(kind):
        return 4 + _counts(_compute.binary_length(array))
    if _types.is_struct(kind):
        return sum((_sizes(child) for child in array.flatten()), np.zeros(len(array), np.int64))
    if _types.is_list(kind) or _types.is_large_list(kind):
        return 4 + _ITEM * _counts(_compute.list_value_length(array))
    return np.full(len(array), _width(kind), np.int64)


def _counts(lengths: Any) -> Any:
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _width(kind: Any) -> int:
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return _ITEM
