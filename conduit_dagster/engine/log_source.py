"""A source as seen by the steps of a pipeline with a log of records: its log entries, by offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conduit_dagster.commit_log.splits import LogManifest, cut, reach, read_whole, relocated
from conduit_dagster.node_ids import input_id
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, Keys, Limit, Position, ReadOptions, Source, Split
from conduit_dagster.state.pipeline_state import CATCH_UP


class LogSource(Source):
    """Reader of the log entries of the source ``real``. A position is the offset after a record."""

    name = "logged"
    sets_metadata = True
    gives_json = True

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
