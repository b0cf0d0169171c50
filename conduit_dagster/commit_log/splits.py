"""Ranges of the log as splits: assigned to files on the driver, by the manifest, and read by tasks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import sqlalchemy as sa

from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, Split
from conduit_dagster.state.log_store import LogPart, LogState, LogStore

T = TypeVar("T")


class Read(Protocol):
    """Runs a read on one snapshot of the state store, such as ``Transactions.read``."""

    def __call__(self, work: Callable[[sa.Connection], T], /) -> T:
        """Return the result of ``work``, which may be called again if the store does not answer."""
        ...


class LogManifest:
    """The current files of one source's log."""

    def __init__(self, read: Read, folder: LogFolder) -> None:
        self._read = read
        self._store = LogStore(folder.pipeline)
        self.source = folder.source
        self.folder = folder

    def state(self) -> LogState:
        """Return the state of the log's end."""
        return self._read(lambda connection: self._store.state(connection, self.source))

    def parts(self, start: int = 0, stop: int | None = None) -> Sequence[LogPart]:
        """Return the files with entries of the range."""
        if stop is not None and start >= stop:
            return []
        return self._read(lambda connection: self._store.parts(connection, self.source, start, stop))

    def nacked(self, start: int, stop: int) -> list[int]:
        """Return the offsets of entries nacked before they were logged. Reads only files that have any."""
        from conduit_dagster.commit_log.segment_files import read_current

        found: list[int] = []
        parts = [part for part in self.parts(start, stop) if part.nacked]
        if parts:
            for batch in read_current(self.folder, self.parts, start, stop, columns=["nack_node"]):
                valid = batch.column("nack_node").is_valid().to_pylist()
                offsets = batch.column("offset").to_pylist()
                found.extend(offset for offset, is_nack in zip(offsets, valid, strict=True) if is_nack)
        return found

    def count(self, start: int, stop: int) -> int:
        """Return the number of entries in the range. Reads their offsets."""
        from conduit_dagster.commit_log.segment_files import read_current

        return sum(len(batch) for batch in read_current(self.folder, self.parts, start, stop, columns=["offset"]))

    def position_at(self, offset: int) -> Any:
        """Return the source's newest position at or before ``offset``; None if the log has none."""
        state = self.state()
        if offset >= state.next_offset:
            return state.position
        return self._read(lambda connection: self._store.position_before(connection, self.source, offset))


_GRAIN = 20_000
"""Number of entries that do not justify a split of their own."""


def reach(manifest: LogManifest, start: int, stop: int, most: int) -> int:
    """Return how far a step may read from ``start``, at most to ``stop``: whole files of at most ``most`` bytes."""
    size = 0
    for part in manifest.parts(start, stop):
        size += part.bytes
        if size > most and part.first > start:
            return part.first
    return stop


def behind(start: int, stop: int, nacked: Sequence[int], count: int) -> int:
    """Return the offset after ``count`` good entries and the nacked ones directly after them, at most ``stop``.

    ``nacked``: the offsets of nacked entries from ``start`` to ``stop``.
    """
    end = start + count
    while (more := start + count + bisect_left(nacked, end)) != end:
        end = more
    taken = set(nacked)
    while end in taken:
        end += 1
    return min(end, stop)


def cut(manifest: LogManifest, start: int, end: int, n: int) -> list[Split]:
    """Cut into ranges of offsets, each with the files that hold it."""
    parts = list(manifest.parts(start, end))
    # a step beyond the manifest would lose the records there
    assert start >= end or parts[-1].next >= end, "beyond the log"
    grain = max(_GRAIN, -(-(end - start) // n))
    return [
        log_split(manifest.folder, parts, low, min(low + grain, end), low - start) for low in range(start, end, grain)
    ]


def relocated(manifest: LogManifest, split: Split) -> Split:
    """Return the split with the current files that hold it: compaction may have replaced them."""
    stop = split.detail["to"]
    return log_split(manifest.folder, manifest.parts(split.start, stop), split.start, stop, split.ordinal)


def log_split(folder: LogFolder, parts: Sequence[LogPart], start: int, stop: int, ordinal: int) -> Split:
    """Return the entries ``start`` to ``stop`` as a split that any worker can read."""
    mine = [part for part in parts if part.next > start and part.first < stop]
    entries = max(1, sum(part.entries for part in mine))
    weight = sum(part.bytes for part in mine) * (stop - start) // entries
    detail = {
        "to": stop,
        "base": folder.base,
        "pipeline": folder.pipeline,
        "source": folder.source,
        "reader": folder.reader,
        # readers of entries need no positions, which may be large
        "parts": [msgspec.to_builtins(msgspec.structs.replace(part, position=None)) for part in mine],
    }
    return Split(start, ordinal, stop - start, weight, detail)


def read_whole(
    split: Split, keys: bool = True, gap: Callable[[Split, int, int], FatalError] | None = None
) -> Iterator[Block]:
    """Yield the blocks of a split; raise the error from ``gap`` for a missing range (``log.gap`` by default).

    A step never reads a range with gaps: skipping one would lose records silently. Without ``keys``, keys and positions
    are filled in by ``complete``.
    """
    expected, missing = split.start, gap or _gap
    for block in _read_log(split, keys):
        count = len(block.records)
        if (block.boundary(0), block.boundary(count - 1)) != (expected + 1, expected + count):
            raise missing(split, expected, block.boundary(count - 1))
        expected += count
        yield block
    if expected != split.detail["to"]:
        raise missing(split, expected, split.detail["to"])


def _gap(split: Split, offset: int, behind: int) -> FatalError:
    """Return the error for a log that lacks entries from ``offset`` on, somewhere before ``behind``."""
    del behind
    detail, folder = split.detail, _folder(split)
    return FatalError(
        f"the log of {detail['source']} lacks offset {offset}; a step reads {split.start} to {detail['to'] - 1} of it",
        code="log.gap",
        place=folder.url,
        fix=f"put the log's files back; or go on behind what is missing, and lose it: {folder.rewind('N')}",
    )


def _folder(split: Split) -> LogFolder:
    detail = split.detail
    return LogFolder(detail["base"], detail["pipeline"], detail["source"], detail.get("reader", ""))


def _read_log(split: Split, keys: bool) -> Iterator[Block]:
    # imported late: validating a pipeline must not import pyarrow
    from conduit_dagster.commit_log.entries import DECODED, decode_batch, decode_rows
    from conduit_dagster.commit_log.segment_files import read

    detail, folder = split.detail, _folder(split)
    parts = msgspec.convert(detail["parts"], list[LogPart])
    for batch in read(folder, parts, split.start, detail["to"], DECODED):
        decoded = decode_batch(batch, keys)
        offsets, complete = decoded.offsets, None if keys else decoded.complete
        again = partial(decode_rows, batch, 0)
        yield Block(decoded.records, lambda i, offsets=offsets: offsets[i] + 1, complete, decoded.nacks, again=again)
