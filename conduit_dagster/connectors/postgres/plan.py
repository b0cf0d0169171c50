"""From a delivery, or a child of it, to what one COPY after the other takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from typing import IO, NamedTuple

from conduit_dagster import storage
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.staging import Group, Index, Missing, read_index, read_missing
from conduit_dagster.sdk import Delivery

_CHUNK = 1 << 18


class Slice(NamedTuple):
    """Lines that follow each other in one part and belong to one group."""

    url: str
    offset: int
    bytes: int
    records: int
    place: int
    """How many records of the delivery (or child) lie before it."""


class Batch(NamedTuple):
    """What one COPY takes."""

    group: Group
    slices: list[Slice]

    def place(self, line: int) -> int:
        """The place in the delivery of the COPY's n-th line, counted from 1."""
        left = line - 1
        for one in self.slices:
            if left < one.records:
                return one.place + left
            left -= one.records
        return self.slices[-1].place + self.slices[-1].records - 1

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, in pieces worth sending, however short the slices are."""
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


def batches(slices: list[tuple[Group, Slice]], strict: bool = False) -> list[Batch]:
    """Batches whose order has the effect of the records' order.

    Tables come in the order of their first record. Within one, inserts between two merges are taken together,
    whatever their columns; merges keep their order. Between tables the order of records is given up.

    ``strict``: inserts keep their order as well, so that of a table's records the first bad one is refused; it may take
    many more batches.
    """
    found: dict[TableName, list[Batch]] = {}
    for group, one in slices:
        _into(found.setdefault(group.table, []), group, one, strict)
    return [batch for table in found.values() for batch in table]


def _into(table: list[Batch], group: Group, one: Slice, strict: bool) -> None:
    for batch in reversed(table):
        if batch.group == group:
            batch.slices.append(one)
            return
        if strict or batch.group.merge or group.merge:
            break
    table.append(Batch(group, [one]))


class Locator:
    """Finds the lines of a delivery. Children that follow each other are found from where the last one ended."""

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
        """The tables that were not there when it was staged."""
        self._load(delivery)
        return self._missing

    def slices(self, delivery: Delivery) -> list[tuple[Group, Slice]]:
        """The lines, in order."""
        self._load(delivery)
        if delivery.take is None:
            return list(self._whole(delivery))
        if delivery.skip < self._record:
            self._reset()
        self._forward(delivery, delivery.skip - self._record)
        return list(self._forward(delivery, delivery.take))

    def _whole(self, delivery: Delivery) -> Iterator[tuple[Group, Slice]]:
        place = 0
        for part, index in zip(delivery.parts, self._indexes, strict=True):
            offset, url = 0, storage.join(delivery.staging, part.name)
            for run in index.runs:
                yield index.groups[run.group], Slice(url, offset, run.bytes, run.records, place)
                offset, place = offset + run.bytes, place + run.records

    def _forward(self, delivery: Delivery, records: int) -> list[tuple[Group, Slice]]:
        """Moves over so many records and gives their slices."""
        found: list[tuple[Group, Slice]] = []
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
            return _bytes_of(file, records)


def _bytes_of(file: IO[bytes], lines: int) -> int:
    return sum(map(len, islice(file, lines)))
