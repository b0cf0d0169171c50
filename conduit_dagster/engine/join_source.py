"""Fan-in ``join``: combines the k-th record of each source's log into one record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conduit_dagster.commit_log.splits import behind, log_split, read_whole
from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.record import Nack, Record
from conduit_dagster.sdk import Block, ConnectorSettings, Limit, Position, ReadOptions, Source, Split

_BLOCK = 3_000


class JoinSource(Source):
    """One source that joins several logs. A position holds the offset of each member (CASES D16).

    Entries nacked by a source's processors are passed on separately, before the record that follows them. A record
    without a partner is not part of a step yet.
    """

    name = "join"
    sets_metadata = True
    gives_json = True

    def __init__(self, members: Mapping[str, LogSource]) -> None:
        first = next(iter(members.values()))
        super().__init__(ConnectorSettings(), first.context)
        self.members = dict(members)

    def initial(self) -> Position:
        """Return the position before the first entry of each member."""
        return dict.fromkeys(self.members, 0)

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position after the same number of good entries of each member, including adjacent nacked ones."""
        queues = {name: self._queue(name, start[name], limit.records) for name in self.members}
        count = min(limit.records, *(queue.good for queue in queues.values()))
        return {name: queue.after(count) for name, queue in queues.items()}

    def _queue(self, name: str, start: int, records: int) -> _Queue:
        manifest = self.members[name].manifest
        stop = min(manifest.state().next_offset, start + 2 * records)
        return _Queue(start, stop, manifest.nacked(start, stop))

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return a single split: the members' files are read in parallel."""
        splits = {name: self._member(name, start[name], end[name]) for name in self.members}
        rows = {name: {"start": s.start, "to": end[name], "detail": s.detail} for name, s in splits.items()}
        return [Split(start, 0, None, sum(s.bytes for s in splits.values()), {"members": rows})]

    def _member(self, name: str, start: int, end: int) -> Split:
        manifest = self.members[name].manifest
        return log_split(manifest.folder, manifest.parts(start, end), start, end, 0)

    def relocate(self, split: Split) -> Split:
        """Return the split with the current files that hold it."""
        return self.split(split.start, {name: row["to"] for name, row in split.detail["members"].items()}, 1)[0]

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """Yield joined records, with the nacked entries between them."""
        members = {
            name: _Entries(Split(row["start"], 0, None, 0, row["detail"]))
            for name, row in split.detail["members"].items()
        }
        yield from _blocks(_Joining(members, dict(split.start)))

    def place(self, position: Position) -> Any:
        """Return the place of a position, in the form that a single log uses."""
        return {"log": position}

    def horizon(self) -> Any:
        """Return each member's horizon."""
        return {name: member.horizon() for name, member in self.members.items()}

    def ack(self, upto: Position, generation: int) -> None:
        """Ack each member up to its offset."""
        for name, member in self.members.items():
            member.ack(upto[name], generation)

    @property
    def unit(self) -> dict[str, Any]:
        """Identity of the joined sources."""
        return {"plugin": self.name, "members": {name: member.unit for name, member in self.members.items()}}


class _Queue:
    """Entries of one member that have not been joined yet."""

    def __init__(self, start: int, stop: int, nacked: list[int]) -> None:
        self._start, self._stop, self._nacked = start, stop, nacked

    @property
    def good(self) -> int:
        """Number of entries that can be joined."""
        return self._stop - self._start - len(self._nacked)

    def after(self, count: int) -> int:
        """Return the offset after ``count`` good entries and the nacked ones that follow them directly."""
        return behind(self._start, self._stop, self._nacked, count)


class _Entries:
    """The entries of one member, in order."""

    def __init__(self, split: Split) -> None:
        self._entries = self._all(split)
        self._next = next(self._entries, None)

    @staticmethod
    def _all(split: Split) -> Iterator[tuple[int, Record, tuple[str, Nack] | None]]:
        for block in read_whole(split):
            for i, record in enumerate(block.records):
                yield block.boundary(i), record, block.nacks.get(i)

    def peek(self) -> tuple[int, Record, tuple[str, Nack] | None] | None:
        return self._next

    def take(self) -> tuple[int, Record, tuple[str, Nack] | None] | None:
        taken, self._next = self._next, next(self._entries, None)
        return taken


class _Joining:
    """Joined records and nacked entries, in order, with the position after each."""

    def __init__(self, members: Mapping[str, _Entries], start: dict[str, int]) -> None:
        self._members, self._position = members, start

    def __iter__(self) -> Iterator[tuple[dict[str, int], Record, tuple[str, Nack] | None]]:
        while True:
            yield from self._nacked()
            taken = {name: entries.take() for name, entries in self._members.items()}
            together = {name: entry for name, entry in taken.items() if entry is not None}
            if len(together) < len(self._members):
                return
            self._position = {name: entry[0] for name, entry in together.items()}
            yield self._position, joined({name: entry[1] for name, entry in together.items()}), None

    def _nacked(self) -> Iterator[tuple[dict[str, int], Record, tuple[str, Nack] | None]]:
        for name, entries in self._members.items():
            while (entry := entries.peek()) is not None and entry[2] is not None:
                entries.take()
                self._position = {**self._position, name: entry[0]}
                yield self._position, entry[1], entry[2]


def _blocks(joining: _Joining) -> Iterator[Block]:
    records: list[Record] = []
    positions: list[dict[str, int]] = []
    nacks: dict[int, tuple[str, Nack]] = {}
    for position, record, nack in joining:
        if nack is not None:
            nacks[len(records)] = nack
        records.append(record)
        positions.append(position)
        if len(records) >= _BLOCK:
            yield Block(records, positions.__getitem__, None, nacks)
            records, positions, nacks = [], [], {}
    if records:
        yield Block(records, positions.__getitem__, None, nacks)


def joined(parts: Mapping[str, Record]) -> Record:
    """Return one record made of several: its payload has a field per source, and its key is the first source's.

    Metadata is merged; on conflicts the first source wins.
    """
    every: Sequence[tuple[str, Record]] = list(parts.items())
    metadata: dict[str, str] = {}
    for _, record in reversed(every):
        metadata.update(record.metadata)
    return Record(
        ",".join(f"{name}={record.position}" for name, record in every),
        metadata,
        {name: record.after for name, record in every},
        every[0][1].key,
    )
