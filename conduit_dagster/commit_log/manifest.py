"""The manifest of a pipeline's logs, as the driver asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from conduit_dagster.commit_log.layout import LogFolder
from conduit_dagster.state.log_store import LogPart, LogState, LogStore

T = TypeVar("T")


class Read(Protocol):
    """What is read of the state store at one moment, such as ``Transactions.read``."""

    def __call__(self, work: Callable[[sa.Connection], T], /) -> T:
        """What ``work`` gives; it may be called again where the store did not answer."""
        ...


class LogManifest:
    """Where the entries of one source lie, now."""

    def __init__(self, read: Read, pipeline: str, source: str, base: str) -> None:
        self._read = read
        self._store = LogStore(pipeline)
        self.source = source
        self.folder = LogFolder(base, pipeline, source)

    def state(self) -> LogState:
        """Where the log ends."""
        return self._read(lambda connection: self._store.state(connection, self.source))

    def parts(self, start: int, stop: int | None = None) -> Sequence[LogPart]:
        """The files with entries of the range."""
        if stop is not None and start >= stop:
            return []

        def work(connection: sa.Connection) -> list[LogPart]:
            return self._store.parts(connection, self.source, start, stop)

        return self._read(work)

    def nacked(self, start: int, stop: int) -> list[int]:
        """The offsets of entries that were nacked before they were logged. Reads only where there are any."""
        from conduit_dagster.commit_log.reader import read_current

        found: list[int] = []
        parts = [part for part in self.parts(start, stop) if part.nacked]
        if parts:
            for batch in read_current(self.folder, self.parts, start, stop, columns=["nack_node"]):
                valid = batch.column("nack_node").is_valid().to_pylist()
                offsets = batch.column("offset").to_pylist()
                found.extend(offset for offset, is_nack in zip(offsets, valid, strict=True) if is_nack)
        return found

    def count(self, start: int, stop: int) -> int:
        """How many entries of the range are there. Reads their offsets."""
        from conduit_dagster.commit_log.reader import read_current

        return sum(len(batch) for batch in read_current(self.folder, self.parts, start, stop, columns=["offset"]))

    def position_at(self, offset: int) -> Any:
        """The source's newest position that is not behind ``offset``; None where the log knows none."""
        state = self.state()
        if offset >= state.next_offset:
            return state.position
        return self._read(lambda connection: self._store.position_before(connection, self.source, offset))
