"""Sources of rows in Parquet files, whichever program wrote them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa

from conduit_dagster.connectors.columnar.columns import RowSourceSettings
from conduit_dagster.connectors.columnar.documents import documents
from conduit_dagster.connectors.file.file_state import FoundFile
from conduit_dagster.connectors.parquet.footer import Footer, open_planned, seen_of, spark_schema
from conduit_dagster.connectors.parquet.parquet_position import (
    FinishedParquet,
    FinishedParquets,
    ParquetLists,
    ParquetPosition,
    ReadFile,
    parse_file,
    parse_position,
)
from conduit_dagster.connectors.parquet.parquet_scan import ParquetScan
from conduit_dagster.connectors.path_settings import modes_of
from conduit_dagster.connectors.step_planning import MOST_FILES, before_failure
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.record import COLLECTION, READ_AT, SOURCE_CONNECTOR_ID, Mode, Record
from conduit_dagster.sdk import Block, KeptValues, Limit, Position, ReadOptions, Rows, Source, Split

_ROWS = 65_536
"""Maximum rows in a block that stays columnar."""
_BYTES = 4 << 20
"""Approximate maximum size of a block, decoded."""


class RowFileReader:
    """Reader of the rows of one split."""

    def __init__(self, file: ReadFile, detail: dict[str, Any], metadata: dict[str, str], keys: Sequence[str]) -> None:
        """``detail``: that of the split."""
        self.file, self._url, self._to = file, detail["url"], detail["to"]
        # a split planned by an earlier version has no observed state of its file
        self._seen, self._row_bytes = detail.get("seen", []), detail["row_bytes"]
        self.metadata, self.keys = metadata, keys

    def blocks(self, options: ReadOptions) -> Iterator[Block]:
        """Yield blocks in order, columnar if the plan takes rows."""
        at = self.file.done
        most = max(1, _BYTES // self._row_bytes)
        for batch in self._batches(min(_ROWS if options.rows else options.block_records, most, self._to - at)):
            made = _Made(self, batch, at)
            at += batch.num_rows
            if options.rows:
                like = Record(0, self.metadata)
                lazy = Rows(batch, like, made.all)
                yield Block(cast("list[Record]", lazy), made.boundary, again=made.again)
            else:
                yield Block(made.all(), made.boundary, again=made.again)

    def _batches(self, size: int) -> Iterator[Any]:
        """Yield the rows of the range. Reads no row groups before it, and skips earlier rows of the first one."""
        with open_planned(self._url, self.file.mark, self._seen) as file:
            first, groups = self._groups(file.metadata)
            schema = spark_schema(file)
            skip, left = self.file.done - first, self._to - self.file.done
            for batch in file.iter_batches(size, row_groups=groups, use_threads=False):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                piece = batch.slice(skip, left)
                skip, left = 0, left - piece.num_rows
                yield piece if schema is None else piece.cast(schema)
                if not left:
                    return

    def _groups(self, metadata: Any) -> tuple[int, list[int]]:
        """Return the number of rows before the first row group of the range, and the row groups."""
        begin, first, groups = 0, 0, list[int]()
        for number in range(metadata.num_row_groups):
            end = begin + metadata.row_group(number).num_rows
            if end > self.file.done and begin < self._to:
                first = first if groups else begin
                groups.append(number)
            begin = end
        return first, groups


class _Made:
    """Records of one block, created on demand."""

    def __init__(self, reader: RowFileReader, batch: Any, first: int) -> None:
        self._reader, self._batch, self._first = reader, batch, first

    def all(self) -> list[Record]:
        return self._records(self._batch, range(self._batch.num_rows))

    def again(self, places: Sequence[int]) -> list[Record]:
        return self._records(self._batch.take(pa.array(places, pa.int64())), places)

    def _records(self, batch: Any, places: Sequence[int]) -> list[Record]:
        file, metadata, keys = self._reader.file, self._reader.metadata, self._reader.keys
        prefix, first = f"{file.number}:{file.name}:", self._first + 1
        rows = zip(places, documents(batch), strict=True)
        if not keys:
            return [Record(f"{prefix}{first + i}", metadata, row) for i, row in rows]
        return [Record(f"{prefix}{first + i}", metadata, row, {key: row.get(key) for key in keys}) for i, row in rows]

    def boundary(self, i: int) -> Any:
        return msgspec.to_builtins(msgspec.structs.replace(self._reader.file, done=self._first + i + 1))


class RowFiles(Source):
    """A document per row, file after file.

    The position names every file that was read and still exists, or the lists with fully read ones.
    """

    sets_metadata = True
    gives_json = True
    gives_rows = True
    lag_unit = "records"

    @lazy_property
    def scan(self) -> ParquetScan:
        """Scan of the existing files, for the driver only: a task's split names its file."""
        return self._make_scan()

    @lazy_property
    def _lists(self) -> ParquetLists:
        """Files that left positions, for the driver only."""
        return ParquetLists(self.context)

    def attach_kept(self, kept: KeptValues) -> None:
        """Store fully read files there instead of in the position; only for a folder or glob."""
        if not self.scan.is_ordered:
            self._lists.attach(kept)

    def check(self) -> None:
        """Raise if a file, or its footer, can't be read."""
        self.scan.require_readable()

    @abstractmethod
    def _make_scan(self) -> ParquetScan:
        """Return the scanner; called on its first use."""

    def initial(self) -> Position:
        """Return the position before the first file."""
        return ParquetPosition().as_json()

    def place(self, position: Position) -> Any:
        """Return how far each file is read, digested once files have left the position."""
        where = parse_position(position)
        return position if where.read is None else {"seen": where.seen, "sum": where.read.place(where.files)}

    def horizon(self) -> Any:
        """Return the files that exist now."""
        return self.scan.horizon()

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position reached by reading the files in order up to the limit."""
        position, left = parse_position(start), limit
        moved: dict[int, ReadFile] = {}
        look = self.scan.look(position, horizon, self._lists.of(position))
        for file, footer in before_failure(look.unread, moved):
            rows = min(file.rows - file.done, left.records, max(1, left.bytes // footer.row_bytes))
            moved[file.number] = msgspec.structs.replace(file, done=file.done + rows)
            left = Limit(left.records - rows, left.bytes - rows * footer.row_bytes)
            # at most one file is partly read: the next file's rows would otherwise come before its remaining ones
            if rows < file.rows - file.done or min(left) <= 0 or len(moved) >= MOST_FILES:
                break
        if not moved:
            return start
        still = look.still
        if self._lists.is_writable:
            still = self._lists.left(still, look.states)
        elif still.read is not None:
            still = msgspec.structs.replace(still, read=still.read.moved(look.states.gone, ()))
        return still.with_files(moved).as_json()

    def verify(self, start: Position, end: Position) -> None:
        """Raise ``FatalError`` unless every file of the range still exists with the same footer."""
        self._found(start, end)

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """Return the position at a boundary: files before the boundary's are fully read, those after it not at all."""
        cut, before, after = parse_file(boundary), parse_position(start), parse_position(end)
        moved: dict[int, ReadFile] = {}
        for first, last in self._moved(before, after):
            if last.number == cut.number:
                if cut.done > first.done:
                    moved[cut.number] = cut
                break
            moved[last.number] = last
        return before.like(after).with_files(moved).as_json() if moved else start

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Split between row groups into pieces of about equal size."""
        found = self._found(start, end)
        weights = [(last.done - first.done) * footer.row_bytes for first, last, _, footer in found]
        share, splits, ordinal = max(1, sum(weights) // n), list[Split](), 0
        for first, last, opened, footer in found:
            for low, high in _pieces(first.done, last.done, footer, share):
                splits.append(_split(first, opened, low, high, ordinal, footer.row_bytes))
                ordinal += high - low
        return splits

    def _moved(self, start: ParquetPosition, end: ParquetPosition) -> Iterator[tuple[ReadFile, ReadFile]]:
        """Yield each file with rows in the range, as at the range's start and as at its end, in reading order.

        Files are looked up in the lists of both positions as well: the two may lie many steps apart.
        """
        before, listed = {file.number: file for file in start.files}, self._lists.of(start)
        for last in _at(end, listed, self._lists.of(end)):
            row = listed.rows.get(last.number)
            first = before.get(last.number) or (row.file if row else msgspec.structs.replace(last, done=0))
            if last.done > first.done:
                yield first, last

    def _found(self, start: Position, end: Position) -> list[tuple[ReadFile, ReadFile, FoundFile, Footer]]:
        """Return each file of the range. Raises ``FatalError`` if one is missing or was replaced."""
        ranges = list(self._moved(parse_position(start), parse_position(end)))
        there = self.scan.named([last.name for _, last in ranges])
        for _, last in ranges:
            if last.ident not in there:
                raise self.scan.gone(last)
        return [(first, last, *there[last.ident]) for first, last in ranges]

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the rows of one file's range."""
        detail, file = split.detail, parse_file(split.start)
        collection = self._collection_of(file)
        metadata = {
            SOURCE_CONNECTOR_ID: self.context.full_id,
            **self._describe(detail["url"]),
            **({COLLECTION: collection} if collection else {}),
            READ_AT: str(self.context.clock.now_ns),
        }
        reader = RowFileReader(file, detail, metadata, cast("RowSourceSettings", self.settings).keys)
        yield from reader.blocks(options)

    @abstractmethod
    def _collection(self, file: str) -> str:
        """Return the collection of the records of a file with this name; empty for none."""

    @abstractmethod
    def _describe(self, url: str) -> dict[str, str]:
        """Return the metadata of a file's records."""

    def collection_modes(self, position: Position) -> Mapping[str, Mode]:
        """Return ``complete`` for each collection whose files are all read."""
        where = parse_position(position)
        finished = self._lists.of(where)
        unread = {self._collection_of(file) for file, _ in self.scan.look(where, None, finished).unread}
        known = {self._collection_of(file) for file in (*finished.rows.values(), *where.files)}
        return modes_of(known, unread)

    def _collection_of(self, file: ReadFile | FinishedParquet) -> str:
        return self._collection(file.name.rsplit("/", 1)[-1])

    def lag(self, position: Position) -> int | None:
        """Return the number of unread rows in existing files."""
        where = parse_position(position)
        return self.scan.unread_rows(where, self._lists.of(where))

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return the number of fully read files, and of partly read ones; nothing for a landing."""
        where = parse_position(position)
        if self.scan.is_ordered:
            return {}
        begun = sum(file.done < file.rows for file in where.files)
        read = len(self._lists.of(where).rows) + len(where.files) - begun
        return {"files_read": read, "files_unread": begun}


def _at(end: ParquetPosition, before: FinishedParquets, finished: FinishedParquets) -> Sequence[ReadFile]:
    """Return the files of a position, and those in its lists that are not in the lists ``before``."""
    if finished is before:
        return end.files
    later = [finished.rows[number].file for number in finished.rows.keys() - before.rows.keys()]
    return sorted([*later, *end.files], key=lambda file: file.number) if later else end.files


def _pieces(low: int, high: int, footer: Footer, share: int) -> Iterator[tuple[int, int]]:
    end = 0
    for group in footer.groups:
        end += group.rows
        if low < end < high and (end - low) * footer.row_bytes >= share:
            yield low, end
            low = end
    yield low, high


def _split(file: ReadFile, opened: FoundFile, low: int, high: int, ordinal: int, row_bytes: int) -> Split:
    start = msgspec.to_builtins(msgspec.structs.replace(file, done=low))
    detail = {"url": opened.url, "to": high, "row_bytes": row_bytes, "seen": seen_of(opened)}
    return Split(start, ordinal, high - low, (high - low) * row_bytes, detail)
