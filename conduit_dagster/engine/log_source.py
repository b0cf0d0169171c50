"""Sources as the steps of a pipeline with a log of records see them: one log by offset, or several that are joined."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conduit_dagster.commit_log.splits import LogManifest, behind, cut, log_split, reach, read_whole, relocated
from conduit_dagster.node_ids import input_id
from conduit_dagster.record import Nack, Record
from conduit_dagster.sdk import Block, ConnectorSettings, Keys, Limit, Position, ReadOptions, Source, Split
from conduit_dagster.state.pipeline_state import CATCH_UP


class LogSource(Source):
    """Reader of the log entries of the source ``real``. A position is the offset after a record."""

    name = "logged"
    sets_metadata = True
    gives_json = True
    reader = ""
    """Arguments of ``positions rewind`` with ``{}`` for the offset, if this is not read as the source itself."""

    def __init__(self, real: Source) -> None:
        super().__init__(real.settings, real.context)
        self.real = real
        self._manifest: LogManifest | None = None

    def attach(self, manifest: LogManifest) -> None:
        """Set the manifest. Driver only: tasks need none, since their splits name the files."""
        self._manifest = manifest

    @property
    def manifest(self) -> LogManifest:
        """Manifest of the log's files."""
        assert self._manifest is not None, "only the driver knows the manifest"
        return self._manifest

    def initial(self) -> Position:
        """Return the offset before the first entry."""
        return 0

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the end of the log, within the limit."""
        stop = min(self.manifest.state().next_offset, start + limit.records)
        return reach(self.manifest, start, stop, limit.bytes)

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return ranges of offsets, each with the files that hold it."""
        return cut(self.manifest, start, end, n)

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """Yield the entries as logged; those nacked earlier are marked as nacked. Refuses a gap."""
        yield from read_whole(split, options.keys > Keys.NONE)

    def relocate(self, split: Split) -> Split:
        """Return the split with the current files that hold it: compaction may have replaced them."""
        return relocated(self.manifest, split)

    def place(self, position: Position) -> Any:
        """Return a place distinct from positions of the source itself.

        The log may be switched on and off within one generation.
        """
        return {"log": position}

    def horizon(self) -> Any:
        """Return the real source's horizon."""
        return self.real.horizon()

    def ack(self, upto: Position, generation: int) -> None:
        """Ack the real source up to the last log file that is handled completely."""
        position = self.manifest.position_at(upto)
        if position is not None:
            self.real.ack(position, generation)

    def lag(self, position: Position) -> int | None:
        """Return the real source's lag after the end of the log; None if unknown."""
        known = self.manifest.state().position
        return None if known is None else self.real.lag(known)

    def lag_seconds(self, position: Position) -> float | None:
        """Return the real source's age; None while records of the log wait as well."""
        state = self.manifest.state()
        waits = state.position is None or position < state.next_offset
        return None if waits else self.real.lag_seconds(state.position)

    @property
    def unit(self) -> dict[str, Any]:
        """Identity of the real source's data."""
        return self.real.unit


class CatchUpSource(LogSource):
    """The log of one source, read for one destination: up to the pipeline's position when it was added, or a range."""

    name = CATCH_UP

    def __init__(self, real: Source, source: str, consumer: str) -> None:
        super().__init__(real)
        self.source, self.consumer = source, consumer
        self.reader = f"{shlex.join([real.context.pipeline, source])} --into {shlex.quote(consumer)} --to-offset {{}}"

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the end of the log, but not beyond ``horizon``, where the regular steps take over."""
        return max(start, min(super().latest(start, limit), horizon))

    def ack(self, upto: Position, generation: int) -> None:
        """Do nothing: the source was acked when its records were new."""

    def lag(self, position: Position) -> int | None:
        """Return None: only the source itself has a lag."""
        return None

    def lag_seconds(self, position: Position) -> float | None:
        """Return None, likewise."""
        return None


def catch_up_id(source: str, consumer: str) -> str:
    """Return the id of a destination's catch-up source. No connector id contains an ``@``."""
    return input_id(f"{source}@{consumer}", "catch-up")


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
        for name, member in members.items():
            member.reader = self._rewinding(name)

    def _rewinding(self, name: str) -> str:
        # the operator has to say where the others go on
        offsets = (f'"{one}": {"{}" if one == name else f"OFFSET_OF_{one}"}' for one in self.members)
        return f"{shlex.join([self.context.pipeline, name])} --to {shlex.quote('{' + ', '.join(offsets) + '}')}"

    def initial(self) -> Position:
        """Return the position before the first entry of each member."""
        return dict.fromkeys(self.members, 0)

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position after the same number of good entries of each member, including adjacent nacked ones."""
        stops, nacked, count = dict[str, int](), dict[str, list[int]](), limit.records
        for name, member in self.members.items():
            manifest, begin = member.manifest, start[name]
            stop = stops[name] = min(manifest.state().next_offset, begin + 2 * limit.records)
            nacked[name] = manifest.nacked(begin, stop)
            count = min(count, stop - begin - len(nacked[name]))
        return {name: behind(start[name], stops[name], nacked[name], count) for name in self.members}

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return a single split: the members' files are read in parallel."""
        splits = dict[str, Split]()
        for name, member in self.members.items():
            log, first, to = member.manifest, start[name], end[name]
            splits[name] = log_split(log.folder, log.parts(first, to), first, to, 0)
        rows = {name: {"start": s.start, "to": end[name], "detail": s.detail} for name, s in splits.items()}
        return [Split(start, 0, None, sum(s.bytes for s in splits.values()), {"members": rows})]

    def relocate(self, split: Split) -> Split:
        """Return the split with the current files that hold it."""
        return self.split(split.start, {name: row["to"] for name, row in split.detail["members"].items()}, 1)[0]

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """Yield joined records, with the nacked entries between them."""
        members = {
            name: _entries(Split(row["start"], 0, None, 0, row["detail"]))
            for name, row in split.detail["members"].items()
        }
        yield from _blocks(_joining(members, split.start))

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


_Entry = tuple[Any, Record, tuple[str, Nack] | None]
"""The position after an entry, its record, and its nack, if it was nacked before it was logged."""


def _entries(split: Split) -> Iterator[_Entry]:
    for block in read_whole(split):
        for i, record in enumerate(block.records):
            yield block.boundary(i), record, block.nacks.get(i)


def _joining(members: Mapping[str, Iterator[_Entry]], start: dict[str, int]) -> Iterator[_Entry]:
    """Yield joined records and the nacked entries between them, in order."""
    position = start
    while True:
        together: dict[str, _Entry] = {}
        for name, entries in members.items():
            for entry in entries:
                if entry[2] is None:
                    together[name] = entry
                    break
                position = {**position, name: entry[0]}
                yield position, entry[1], entry[2]
        if len(together) < len(members):
            return
        position = {name: entry[0] for name, entry in together.items()}
        yield position, _joined({name: entry[1] for name, entry in together.items()}), None


def _blocks(entries: Iterator[_Entry]) -> Iterator[Block]:
    records: list[Record] = []
    positions: list[dict[str, int]] = []
    nacks: dict[int, tuple[str, Nack]] = {}
    for position, record, nack in entries:
        if nack is not None:
            nacks[len(records)] = nack
        records.append(record)
        positions.append(position)
        if len(records) >= _BLOCK:
            yield Block(records, positions.__getitem__, None, nacks)
            records, positions, nacks = [], [], {}
    if records:
        yield Block(records, positions.__getitem__, None, nacks)


def _joined(parts: Mapping[str, Record]) -> Record:
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
