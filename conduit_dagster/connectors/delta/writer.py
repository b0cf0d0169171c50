"""A task's writer: documents become one Parquet file inside the table's folder, which no reader sees yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from conduit_dagster.connectors.base import Part, Refusal, Writer, WriterTask
from conduit_dagster.connectors.delta.parquet_part import ParquetPart
from conduit_dagster.connectors.delta.rows import Lines, RowReader, Table
from conduit_dagster.record import Document, Nack, Record

_APPENDED = ("create", "snapshot")


class DeltaWriter(Writer):
    """Stages what fits the table; what does not is refused by name. Holds one row group in memory."""

    def __init__(self, task: WriterTask, reader_of: Callable[[list[Document]], RowReader | None]) -> None:
        self._reader_of = reader_of
        self._reader: RowReader | None = None
        self._file = ParquetPart(task)

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Takes the documents of created and snapshot records."""
        refused: dict[int, Nack] = {}
        places: Sequence[int] = range(len(records))
        documents: list[Any] = [r.after for r in records if r.operation in _APPENDED and type(r.after) is dict]
        if len(documents) < len(records):
            refused = {i: nack for i, record in enumerate(records) if (nack := _refusal(record))}
            places = [i for i in places if i not in refused]
        if documents:
            refused |= {places[i]: nack for i, nack in self._take(documents).items()}
        return [Refusal(place, refused[place]) for place in sorted(refused)]

    def _take(self, documents: list[Document]) -> dict[int, Nack]:
        """Appends the documents that fit; gives the others' nacks."""
        if self._reader is None:
            self._reader = self._reader_of(documents)
        if self._reader is None:
            nack = Nack("delta.no_columns", "the document has no field that could be a column of the new table")
            return dict.fromkeys(range(len(documents)), nack)
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
        """Durable from here on, but for the folder's entry, which the driver syncs before it prepares."""
        return self._file.finish()

    def abort(self) -> None:
        """Leaves a file that no ledger names; it goes with the staging folder."""
        self._file.abort()


def _refusal(record: Record) -> Nack | None:
    if record.operation not in _APPENDED:
        return Nack("delta.append_only", f"the table is only appended to, and this record is a {record.operation}")
    if isinstance(record.after, dict):
        return None
    what = "no payload" if record.after is None else "a raw payload: decode it first, with json.decode for example"
    return Nack("delta.no_document", f"the record has {what}")
