"""Plan of a delivery, or of a child of one, as a sequence of COPY batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import IO, NamedTuple

from conduit_dagster import storage
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.staged_rows import Index, LineGroup, Missing, read_index, read_missing
from conduit_dagster.sdk import Delivery

_CHUNK = 1 << 18


class Slice(NamedTuple):
    """Consecutive lines of one part that belong to one group."""

    url: str
    offset: int
    bytes: int
    records: int
    place: int
    """Number of records of the delivery (or child) before the slice."""


class CopyBatch(NamedTuple):
    """The lines of one COPY, or of consecutive truncates."""

    group: LineGroup
    slices: list[Slice]
    emptied: tuple[TableName, ...] = ()
    """Tables of the truncates, emptied by one statement, since foreign keys may connect them."""

    def place(self, line: int) -> int:
        """Return the place in the delivery of the COPY's n-th line, counted from 1."""
        left = line - 1
        for one in self.slices:
            if left < one.records:
                return one.place + left
            left -= one.records
        return self.slices[-1].place + self.slices[-1].records - 1

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in chunks of a useful size, however short the slices are."""
        waiting: list[bytes] = []
        size = 0
        for piece in self._pieces():
            waiting.append(piece)
            size += len(piece)
            if size >= _CHUNK:
                yield b"".join(waiting)
                waiting, size = [], 0
        if waiting:
            yield b"".join(waiting)

    def _pieces(self) -> Iterator[bytes]:
        for url, slices in groupby(self.slices, lambda one: one.url):
            with storage.open_read(url) as file:
                for one in slices:
                    file.seek(one.offset)
                    yield from _read(file, one.bytes)


def _read(file: IO[bytes], left: int) -> Iterator[bytes]:
    while left and (data := file.read(min(_CHUNK, left))):
        left -= len(data)
        yield data


def lines_of(slices: Iterable[Slice]) -> Iterator[tuple[Slice, bytes]]:
    """Yield each line of the slices, with its end, and the slice that it is alone."""
    for url, of_file in groupby(slices, lambda one: one.url):
        with storage.open_read(url) as file:
            for one in of_file:
                file.seek(one.offset)
                offset = one.offset
                for place in range(one.place, one.place + one.records):
                    line = file.readline()
                    yield Slice(url, offset, len(line), 1, place), line
                    offset += len(line)


def batches(slices: list[tuple[LineGroup, Slice]], strict: bool = False) -> list[CopyBatch]:
    """Return batches whose order has the same effect as the record order.

    A truncate is applied after all records before it and before all records after it, whatever their tables. Between
    two truncates, tables follow the order of their first record. Within a table, inserts between two merges are grouped
    by their columns; merges keep their order. The order of records of different tables is not kept.

    ``strict``: all records keep their order, across tables as well, so that referenced rows exist when needed and the
    first bad record is the one refused; this may take many more batches.
    """
    found: list[CopyBatch] = []
    for truncates, run in groupby(slices, lambda pair: pair[0].truncates):
        pairs = list(run)
        if truncates:
            found.append(_emptying(pairs))
        else:
            found += _in_order(pairs) if strict else _by_table(pairs)
    return found


def _emptying(run: list[tuple[LineGroup, Slice]]) -> CopyBatch:
    tables = dict.fromkeys(group.table for group, _ in run)
    return CopyBatch(run[0][0], [one for _, one in run], tuple(tables))


def _in_order(run: Iterable[tuple[LineGroup, Slice]]) -> Iterator[CopyBatch]:
    for group, pairs in groupby(run, lambda pair: pair[0]):
        yield CopyBatch(group, [one for _, one in pairs])


def _by_table(run: Iterable[tuple[LineGroup, Slice]]) -> list[CopyBatch]:
    found: dict[TableName, list[CopyBatch]] = {}
    for group, one in run:
        _into(found.setdefault(group.table, []), group, one)
    return [batch for table in found.values() for batch in table]


def _into(table: list[CopyBatch], group: LineGroup, one: Slice) -> None:
    for batch in reversed(table):
        if batch.group == group:
            batch.slices.append(one)
            return
        if batch.group.merge or group.merge:
            break
    table.append(CopyBatch(group, [one]))


class Locator:
    """Locator of a delivery's lines. Consecutive children are located from the end of the previous one."""

    def __init__(self) -> None:
        self._staging: tuple[object, ...] = ()
        self._indexes: list[Index] = []
        self._missing: list[Missing] = []
        self._reset()

    def _reset(self) -> None:
        self._part = self._run = self._in_run = self._offset = self._record = 0

    def _load(self, delivery: Delivery) -> None:
        staging = (delivery.staging, delivery.parts)
        if staging != self._staging:
            self._indexes = [read_index(delivery, part) for part in delivery.parts]
            self._missing = [one for part in delivery.parts for one in read_missing(delivery, part)]
            self._staging = staging
            self._reset()

    def missing(self, delivery: Delivery) -> list[Missing]:
        """Return the tables that did not exist when the delivery was staged."""
        self._load(delivery)
        return self._missing

    def slices(self, delivery: Delivery) -> list[tuple[LineGroup, Slice]]:
        """Return the delivery's lines in order."""
        self._load(delivery)
        if delivery.take is None:
            return list(self._whole(delivery))
        if delivery.skip < self._record:
            self._reset()
        self._forward(delivery, delivery.skip - self._record)
        found: list[tuple[LineGroup, Slice]] = []
        place = 0
        for stop in (*delivery.without, delivery.skip + delivery.take):
            taken = stop - self._record
            found += ((group, one._replace(place=place + one.place)) for group, one in self._forward(delivery, taken))
            place += taken
            if stop < delivery.skip + delivery.take:
                self._forward(delivery, 1)  # it is left out
        return found

    def _whole(self, delivery: Delivery) -> Iterator[tuple[LineGroup, Slice]]:
        place = 0
        for part, index in zip(delivery.parts, self._indexes, strict=True):
            offset, url = 0, storage.join(delivery.staging, part.name)
            for run in index.runs:
                yield index.groups[run.group], Slice(url, offset, run.bytes, run.records, place)
                offset, place = offset + run.bytes, place + run.records

    def _forward(self, delivery: Delivery, records: int) -> list[tuple[LineGroup, Slice]]:
        """Advance by ``records`` records and return their slices."""
        found: list[tuple[LineGroup, Slice]] = []
        place = 0
        while place < records and self._part < len(self._indexes):
            index = self._indexes[self._part]
            if self._run == len(index.runs):
                self._part, self._run, self._in_run, self._offset = self._part + 1, 0, 0, 0
                continue
            run = index.runs[self._run]
            taken = min(records - place, run.records - self._in_run)
            url = storage.join(delivery.staging, delivery.parts[self._part].name)
            length = self._length(url, run.bytes if self._in_run == 0 and taken == run.records else None, taken)
            found.append((index.groups[run.group], Slice(url, self._offset, length, taken, place)))
            self._advance(taken, length, run.records)
            place += taken
        return found

    def _advance(self, records: int, length: int, of: int) -> None:
        self._offset += length
        self._record += records
        self._in_run += records
        if self._in_run == of:
            self._run, self._in_run = self._run + 1, 0

    def _length(self, url: str, known: int | None, records: int) -> int:
        if known is not None:
            return known
        with storage.open_read(url) as file:
            file.seek(self._offset)
            return sum(map(len, islice(file, records)))
