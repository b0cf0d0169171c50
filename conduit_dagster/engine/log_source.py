"""A source as the steps of a pipeline with a log of records see it: its entries in the log, by offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conduit_dagster.commit_log.splits import LogManifest, cut, reach, read_whole, relocated
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, Keys, Limit, Position, ReadOptions, Source, Split


class LogSource(Source):
    """Reads what the appender logged of ``real``. A position is the offset behind a record."""

    name = "logged"
    sets_metadata = True
    gives_json = True

    def __init__(self, real: Source) -> None:
        super().__init__(real.settings, real.context)
        self.real = real
        self._manifest: LogManifest | None = None

    def attach(self, manifest: LogManifest) -> None:
        """Called on the driver; tasks need no manifest, since their splits name their files."""
        self._manifest = manifest

    @property
    def manifest(self) -> LogManifest:
        """Where the entries lie."""
        assert self._manifest is not None, "only the driver knows the manifest"
        return self._manifest

    def initial(self) -> Position:
        """Before the first entry."""
        return 0

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """The end of the log, within the limit."""
        stop = min(self.manifest.state().next_offset, start + limit.records)
        return reach(self.manifest, start, stop, limit.bytes)

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Ranges of offsets, each with the files that hold it."""
        return cut(self.manifest, start, end, n)

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """The entries as they were logged; those that a node nacked before come as nacked. Refuses a gap."""
        yield from read_whole(split, options.keys > Keys.NONE)

    def relocate(self, split: Split) -> Split:
        """The split with the files that hold it now: compaction may have put others in their place."""
        return relocated(self.manifest, split)

    def place(self, position: Position) -> Any:
        """Apart from positions of the source itself: the log may be switched on and off under one generation."""
        return {"log": position}

    def horizon(self) -> Any:
        """The real source's."""
        return self.real.horizon()

    def ack(self, upto: Position, generation: int) -> None:
        """Acks the real source as far as its whole files in the log go."""
        position = self.manifest.position_at(upto)
        if position is not None:
            self.real.ack(position, generation)

    def lag(self, position: Position) -> int | None:
        """The real source's, behind the log's end."""
        known = self.manifest.state().position
        return None if known is None else self.real.lag(known)

    @property
    def unit(self) -> dict[str, Any]:
        """The real source's data, read through the log."""
        return {**self.real.unit, "log": "records"}
