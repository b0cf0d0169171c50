"""Read mode for the log of another pipeline's source."""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.commit_log.splits import LogManifest, behind, cut, reach, read_whole, relocated
from conduit_dagster.connectors.pipeline.published import ProjectView
from conduit_dagster.connectors.pipeline.read_mode import log_gap, log_gone, relabel
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, Keys, Limit, ReadOptions, Split
from conduit_dagster.state.readers import log_unit, oldest


class LogReadMode:
    """Entries of the log by offset. A position, also a record's own, is the offset after a record.

    Skips entries that were nacked before they were logged: they are dead letters of the other pipeline.
    """

    def __init__(self, pipeline: str, source: str, reader: str, project: ProjectView) -> None:
        self._log, self._reader, self._project = (pipeline, source), reader, project

    @property
    def unit(self) -> dict[str, Any]:
        """Unit that registers this source as a reader of the log, for which the log is kept."""
        return log_unit(*self._log)

    @property
    def _name(self) -> str:
        return ":".join(self._log)

    def _gap(self, first: int, stop: int, further: int) -> FatalError:
        return log_gap(self._name, self._reader, first, stop, further)

    def _further(self, stop: int) -> int:
        """Return where to go on behind a gap: a file without missing entries is not passed over for a further gap."""
        parts = self._manifest.parts(stop)
        whole = (part.first for part in parts if part.first >= stop and part.entries == part.next - part.first)
        return min(self.initial(), next(whole, self.initial()))

    @property
    def _manifest(self) -> LogManifest:
        # --to-offset is for sources whose records are logged in their own pipeline
        reader = f"{shlex.join(self._reader.split(':'))} --to {{}}"
        return LogManifest(self._project.read, LogFolder(self._project.project.log_url, *self._log, reader))

    def place(self, position: int) -> int:
        """Return the position, which is a place."""
        return position

    # -- how far ------------------------------------------------------------------------------------------------

    def initial(self) -> int:
        """Return the oldest offset from which no entry is missing."""
        return self._project.read(lambda connection: oldest(connection, *self._log))

    def horizon(self) -> int:
        """Return the end of the log."""
        return self._manifest.state().next_offset

    def latest(self, start: int, limit: Limit, horizon: int | None) -> int:
        """Return how far a step may read, at most to the log's end or the first missing entry.

        Raises ``FatalError`` (``chain.*``) if the next entry is missing.
        """
        end = self._end(start)
        first = self._first(start)
        stop = min(end if horizon is None else min(end, horizon), first + 2 * limit.records)
        if first >= stop:
            return start
        # a step must not consist of nacked entries alone
        stop = behind(first, stop, self._manifest.nacked(first, stop), limit.records)
        stop = reach(self._manifest, first, stop, limit.bytes)
        gap = self._gap_in(first, stop)
        if gap is None:
            return stop
        if gap[0] - first > len(self._manifest.nacked(first, gap[0])):
            return gap[0]  # who goes on behind the gap, as the error says, must not lose what lies before it
        raise self._gap(*gap, self._further(gap[1]))

    def _end(self, position: int) -> int:
        end = self._manifest.state().next_offset
        if position > end:
            raise log_gone(self._name, self._reader, position, end)
        return end

    def _first(self, start: int) -> int:
        """Return where reading begins: for position 0 at the log's first entry, since it has no earlier records."""
        parts = self._manifest.parts(0) if start == 0 else ()
        return max(start, parts[0].first) if parts else start

    def lag(self, position: int) -> int:
        """Return the number of entries after the position."""
        return max(0, self._manifest.state().next_offset - position)

    # -- planned ranges -------------------------------------------------------------------------------------------

    def verify(self, start: int, end: int) -> None:
        """Raise ``FatalError`` if an entry of the range is missing."""
        self._end(max(start, end))
        self._require_whole(self._first(start), end)

    def _require_whole(self, start: int, stop: int) -> None:
        """Raise if an entry is missing in between: those not in the manifest, or compacted away, are never skipped."""
        gap = self._gap_in(start, stop)
        if gap is not None:
            raise self._gap(*gap, self._further(gap[1]))

    def _gap_in(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the first range of offsets in which entries are missing, as first and end; None if none is."""
        expected = start
        for part in self._manifest.parts(start, stop) if start < stop else ():
            if part.first > expected:
                return expected, part.first
            first, last = max(part.first, start), min(part.next, stop)
            if part.entries != part.next - part.first and self._manifest.count(first, last) != last - first:
                return first, last
            expected = part.next
        return (expected, stop) if expected < stop else None

    def split(self, start: int, end: int, n: int) -> list[Split]:
        """Split into ranges of offsets, each with the files that hold it."""
        first = self._first(start)
        nacked = self._manifest.nacked(first, end)
        return [_without(split, first, nacked) for split in cut(self._manifest, first, end, n)]

    def relocate(self, split: Split) -> Split:
        """Return the split with the current files that hold it."""
        return msgspec.structs.replace(relocated(self._manifest, split), records=split.records)

    # -- reading, in tasks ----------------------------------------------------------------------------------------

    def read(self, split: Split, options: ReadOptions, labels: dict[str, str]) -> Iterator[Block]:
        """Yield the good entries. Raises ``FatalError`` (``chain.log_gap``) if one is missing."""
        # the driver verified the range, but a log that changes under its reader must not lose anything either
        for block in read_whole(
            split, options.keys > Keys.NONE, lambda _, first, behind: self._gap(first, behind, behind)
        ):
            yield _given_on(block, labels)


def _without(split: Split, start: int, nacked: Sequence[int]) -> Split:
    """Return the split with an ordinal and count that exclude nacked entries, which are skipped."""
    low, high = bisect_left(nacked, split.start), bisect_left(nacked, split.detail["to"])
    return msgspec.structs.replace(
        split, ordinal=split.start - start - low, records=split.detail["to"] - split.start - (high - low)
    )


def _given_on(block: Block, labels: dict[str, str]) -> Block:
    """Return the block's good records, relabelled for this source."""
    rows = [row for row in range(len(block.records)) if row not in block.nacks]
    records, boundary = [block.records[row] for row in rows], block.boundary
    for row, record in zip(rows, records, strict=True):
        record.position = boundary(row)
    relabel(records, labels)
    return Block(records, lambda i: boundary(rows[i]), _complete(block, rows), again=_again(block, rows, labels))


def _complete(block: Block, rows: Sequence[int]) -> Callable[[int, Record], None] | None:
    complete, boundary = block.complete, block.boundary
    if complete is None:
        return None

    def whole(i: int, record: Record) -> None:
        complete(rows[i], record)
        record.position = boundary(rows[i])

    return whole


def _again(block: Block, rows: Sequence[int], labels: dict[str, str]) -> Callable[[Sequence[int]], list[Record]]:
    again, boundary = block.again, block.boundary
    assert again is not None

    def read(places: Sequence[int]) -> list[Record]:
        records = again([rows[place] for place in places])
        for place, record in zip(places, records, strict=True):
            record.position = boundary(rows[place])
        relabel(records, labels)
        return records

    return read
