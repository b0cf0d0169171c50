"""Task-side writer: stages documents, or columns unconverted, as one Parquet file that readers can't see yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_dagster.connectors.columnar.columns import ColumnsSettings, Schema, infer, named_columns
from conduit_dagster.connectors.columnar.rows import Lines, RowReader, Table, fitted
from conduit_dagster.record import Document, Nack, Record
from conduit_dagster.sdk import Keys, NewPart, Part, Refusal, Rows, StagedDestination, Writer, WriterTask
from conduit_dagster.sink import Sink

_types: Any = pa.types
_compute: Any = pc
ROW_GROUP_BYTES: Final = 16 << 20
"""A row group ends after the record that brings it to this size."""


class ParquetPart:
    """A new Parquet file. The same rows result in the same bytes, however they are divided into blocks.

    Recovery stages a lost part again and compares digests, so row groups depend on the rows alone. Another version of
    pyarrow may produce other bytes.
    """

    def __init__(self, task: WriterTask, compression: str = "zstd") -> None:
        self._part = NewPart(task, "parquet")
        self._compression = compression
        self._file: Any = None
        self._waiting: list[Table] = []
        self._bytes = 0
        self._records = 0

    def add(self, table: Table, sizes: Any) -> None:
        """Append rows. ``sizes``: size of each row, as the length of its JSON or the size of its Arrow values."""
        self._records += table.num_rows
        upto, start = np.cumsum(sizes), 0
        while start < table.num_rows:
            before = int(upto[start - 1]) if start else 0
            end = int(np.searchsorted(upto, before + ROW_GROUP_BYTES - self._bytes)) + 1
            piece = table.slice(start, end - start)
            start += piece.num_rows
            self._waiting.append(piece)
            self._bytes += int(upto[start - 1]) - before
            if self._bytes >= ROW_GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        # one chunk per column: page boundaries must not depend on the blocks
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._bytes = [], 0
        if self._file is None:
            # without ARROW:schema: every reader must read the file with the types in the table's log
            self._file = pq.ParquetWriter(
                Sink(self._part), rows.schema, compression=self._compression, store_schema=False
            )
        self._file.write_table(rows, row_group_size=rows.num_rows)

    def finish(self) -> Part | None:
        """Write the remaining rows and sync the file; return None if no rows were added."""
        if self._waiting:
            self._flush()
        if self._file is not None:
            self._file.close()
        return self._part.finish(self._records)

    def abort(self) -> None:
        """Close the part, none of which then counts."""
        self._part.abort()


class ColumnsDestination(StagedDestination):
    """A destination with a column per field, whose writer is a :class:`ColumnsWriter`."""

    reads_keys = Keys.NONE
    changes_records = False
    takes_rows = True

    @property
    def declared_columns(self) -> Sequence[tuple[str, str]]:
        """The setting ``columns``."""
        return named_columns(cast("ColumnsSettings", self.settings).columns)


_APPENDED = ("create", "snapshot")

ReaderOf = Callable[[Callable[[], Schema]], RowReader | None]
"""Returns the reader for the table's columns; calls its argument for the columns of the first rows if the table does
not exist yet. Returns None without columns to create one.
"""
Offered = Callable[[Schema], Schema | None]
"""Returns the columns of a new table for rows with these columns; None if they must be inferred from documents."""


class ColumnsWriter(Writer):
    """Writer that stages records that fit the columns and nacks every other one. Holds one row group in memory."""

    def __init__(self, file: ParquetPart, plugin: str, reader_of: ReaderOf, offered: Offered) -> None:
        """Nack codes begin with ``plugin``."""
        self._file = file
        self._plugin = plugin
        self._reader_of = reader_of
        self._offered = offered
        self._reader: RowReader | None = None

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Stage the documents of create and snapshot records; rows that fit as a whole are staged unconverted."""
        if isinstance(records, Rows) and (refusals := self._take_rows(records)) is not None:
            return refusals
        refused: dict[int, Nack] = {}
        places: Sequence[int] = range(len(records))
        documents: list[Any] = [r.after for r in records if r.operation in _APPENDED and type(r.after) is dict]
        if len(documents) < len(records):
            refused = {i: nack for i, record in enumerate(records) if (nack := self._refusal(record))}
            places = [i for i in places if i not in refused]
        if documents:
            refused |= {places[i]: nack for i, nack in self._take(documents).items()}
        return [Refusal(place, refused[place]) for place in sorted(refused)]

    def _take_rows(self, rows: Rows) -> Sequence[Refusal] | None:
        """Append rows unconverted and return refusals; None if only documents can tell which of them fit."""
        if self._reader is None:
            self._reader = self._reader_of(lambda: self._offered(rows.batch.schema) or infer(_documents(rows)))
        if self._add(rows, 0, len(rows)):
            return ()
        reader = self._reader
        if reader is None:
            return None
        if fitted(rows.batch.slice(0, 0), reader.schema, reader.strict) is not None:
            return [Refusal(place, nack) for place, nack in self._halved(rows, 0, len(rows))]
        if not reader.unfillable:
            return None
        return [Refusal(place, reader.row_nack(rows.batch.slice(place, 1))) for place in range(len(rows))]

    def _add(self, rows: Rows, start: int, stop: int) -> bool:
        """Append the rows; return False, with none appended, if one of them does not fit."""
        if self._reader is None:
            return False
        table = fitted(rows.batch.slice(start, stop - start), self._reader.schema, self._reader.strict)
        if table is not None:
            self._file.add(table, row_sizes(table))
        return table is not None

    def _halved(self, rows: Rows, start: int, stop: int) -> Iterator[tuple[int, Nack]]:
        """Append rows that do not fit together, by halving; take a row that does not fit alone as a document."""
        if stop - start == 1:
            yield from ((start, nack) for nack in self._take_alone(rows, start))
            return
        middle = (start + stop) // 2
        for low, high in ((start, middle), (middle, stop)):
            if not self._add(rows, low, high):
                yield from self._halved(rows, low, high)

    def _take_alone(self, rows: Rows, place: int) -> Iterable[Nack]:
        """Take a row that does not fit as a document, if one can stand for it; return its nack otherwise."""
        if self._reader is not None and self._reader.unfillable:
            return (self._reader.row_nack(rows.batch.slice(place, 1)),)
        return self._take(_documents(rows[place : place + 1])).values()

    def _take(self, documents: list[Document]) -> dict[int, Nack]:
        """Append the documents that fit; return the nacks of the others."""
        if self._reader is None:
            self._reader = self._reader_of(lambda: infer(documents))
        if self._reader is None:
            nack = self._nack("no_columns", "the document has no field that could be a column of the new table")
            return dict.fromkeys(range(len(documents)), nack)
        if self._reader.unfillable:
            return dict.fromkeys(range(len(documents)), self._reader.unfillable_nack())
        block = Lines(documents)
        try:
            table = self._reader.read(block.lines) if block.lines else None
        except pa.ArrowException:
            table = self._without_misfits(self._reader, block, documents)
        if table is not None:
            self._file.add(table, [len(line) for line in block.lines])
        return block.refused

    def _without_misfits(self, reader: RowReader, block: Lines, documents: list[Document]) -> Table | None:
        bad = reader.misfits(block.lines)
        for i, error in bad.items():
            place = block.places[i]
            block.refused[place] = reader.nack(documents[place], error)
        block.lines = [line for i, line in enumerate(block.lines) if i not in bad]
        return reader.read(block.lines) if block.lines else None

    def finish(self) -> Part | None:
        """Make the part durable, except for its directory entry, which the driver syncs before it prepares."""
        return self._file.finish()

    def abort(self) -> None:
        """Leave a file that no ledger names; it is removed with the staging folder."""
        self._file.abort()

    def _refusal(self, record: Record) -> Nack | None:
        if record.operation not in _APPENDED:
            why = f"rows are only appended, and this record's operation is {record.operation}: set .Operation to create"
            return self._nack("append_only", why)
        if isinstance(record.after, dict):
            return None
        what = "no payload" if record.after is None else "a raw payload: decode it first, with json.decode for example"
        return self._nack("no_document", f"the record has {what}")

    def _nack(self, what: str, message: str) -> Nack:
        return Nack(f"{self._plugin}.{what}", message)


def _documents(rows: Iterable[Record]) -> list[Document]:
    return [record.after for record in rows if isinstance(record.after, dict)]


_UNKNOWN_WIDTH: Final = 16
"""Estimated bytes of a value without a fixed width that is neither text, a list nor a document."""


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
    if _types.is_map(kind):
        return _sizes(array.cast(pa.list_(kind.field(0))))
    if _types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind):
        # the sizes of the items are summed: a row group must not outgrow memory because its rows are lists
        items = np.concatenate([np.zeros(1, np.int64), np.cumsum(_sizes(array.flatten()))])
        ends = np.cumsum(lengths := _counts(_compute.list_value_length(array)))
        return 4 + items[ends] - items[ends - lengths]
    return np.full(len(array), _width(kind), np.int64)


def _counts(lengths: Any) -> Any:
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _width(kind: Any) -> int:
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return _UNKNOWN_WIDTH
