"""Compaction of closed segments: removes entries that no consumer needs, except for each namespace's last one.

Source: reference 4.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.commit_log.entries import Batch
from conduit_dagster.commit_log.segment_files import LogDamagedError, PartFile, read, verify
from conduit_dagster.commit_log.segment_layout import LogFolder, Written, shown
from conduit_dagster.config.delivery import LogRetention
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk.staging import discard_file
from conduit_dagster.state.catch_ups import held_from
from conduit_dagster.state.delivery_store import EVERYTHING, ByConsumer, offsets_of
from conduit_dagster.state.log_store import LogPart, LogStore
from conduit_dagster.state.tables import LONGEST

_MICROSECONDS: Final = 1_000_000


def beyond_retention(
    folder: LogFolder, closed: Sequence[list[LogPart]], retention: LogRetention | None, now_us: int
) -> list[list[LogPart]]:
    """Return the closed segments, out of all in order, beyond the retention: only those may be compacted.

    A segment is kept while its newest entry is younger than ``time``, and the closed segments after it have fewer than
    ``bytes`` together. The kept segments are always the end of the log, without a gap.
    """
    if retention is None:
        return [*closed]
    bytes_after = 0
    for place in range(len(closed) - 1, -1, -1):
        parts = closed[place]
        if _is_beyond(folder, parts, retention, now_us, bytes_after):
            return [*closed[: place + 1]]
        bytes_after += sum(part.bytes for part in parts)
    return []


def _is_beyond(folder: LogFolder, parts: list[LogPart], retention: LogRetention, now_us: int, bytes_after: int) -> bool:
    if retention.bytes is not None and bytes_after >= retention.bytes:
        return True
    if retention.time is None:
        return False
    try:
        return now_us - _newest_us(folder, parts) >= retention.time * _MICROSECONDS
    except LogDamagedError:
        return False  # the time of an older segment tells


def _newest_us(folder: LogFolder, parts: list[LogPart]) -> int:
    """Return when a segment's last entry was logged. Compaction keeps that entry: it is the last of its namespace."""
    last = next(read(folder, parts[-1:], parts[-1].next - 1, columns=["timestamp"]))
    return int(last.column("timestamp")[-1].value)


def anything_handled(consumers: Sequence[str], offsets: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether every consumer has acked something; otherwise, or without consumers, nothing is compacted."""
    return bool(consumers) and all(offsets.get(consumer) for consumer in consumers)


def highest_handled(consumers: Iterable[str], offsets: Mapping[str, Mapping[str, int]]) -> int:
    """Return an offset above which no entry of any namespace is handled by all consumers."""
    return min((max(offsets.get(consumer, {}).values(), default=-1) for consumer in consumers), default=-1)


def handled_upto(namespace: str, consumers: Iterable[str], offsets: Mapping[str, Mapping[str, int]]) -> int:
    """Return the offset up to which all consumers handled the namespace; -1 if one of them handled none of it.

    A consumer's own offset for the namespace is used if known, otherwise its offset for the whole source.
    """
    return min((_handled(namespace, offsets.get(consumer, {})) for consumer in consumers), default=-1)


def _handled(namespace: str, offsets: Mapping[str, int]) -> int:
    known = namespace if namespace in offsets and len(namespace) < LONGEST else EVERYTHING
    return offsets.get(known, -1)


class CompactionRule:
    """The entries of one segment to keep: those that a consumer still needs, and the last one of each namespace."""

    def __init__(self, consumers: Sequence[str], offsets: Mapping[str, Mapping[str, int]]) -> None:
        self._consumers = consumers
        self._offsets = offsets
        self._upto: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._needed = 0

    def see(self, batch: Batch) -> None:
        """Register a block. All blocks of the segment must be seen, in order, before :meth:`stays` is called."""
        entries, namespaces, codes = _columns(batch)
        self._needed += int(np.count_nonzero(entries > self._floors(namespaces)[codes]))
        present, back = np.unique(codes[::-1], return_index=True)
        for code, place in zip(present.tolist(), back.tolist(), strict=True):
            self._last[namespaces[code]] = int(entries[len(entries) - 1 - place])

    @property
    def count(self) -> int:
        """Number of registered entries that stay."""
        return self._needed + sum(last <= self._upto[namespace] for namespace, last in self._last.items())

    def stays(self, batch: Batch) -> Any:
        """Return which entries of the block stay, as a numpy mask."""
        entries, namespaces, codes = _columns(batch)
        lasts = np.array([self._last.get(namespace, -1) for namespace in namespaces], np.int64)
        return (entries > self._floors(namespaces)[codes]) | (entries == lasts[codes])

    def _floors(self, namespaces: list[str]) -> Any:
        for namespace in namespaces:
            if namespace not in self._upto:
                self._upto[namespace] = handled_upto(namespace, self._consumers, self._offsets)
        return np.array([self._upto[namespace] for namespace in namespaces], np.int64)


def _columns(batch: Batch) -> tuple[Any, list[str], Any]:
    column = batch.column("namespace")
    return batch.column("offset").to_numpy(), column.dictionary.to_pylist(), column.indices.to_numpy()


T = TypeVar("T")
Segments = list[list[LogPart]]


def closed_segments(parts: Iterable[LogPart]) -> Segments:
    """Return the files of each closed segment, out of all of a log in order: the last segment is active."""
    segments: dict[int, list[LogPart]] = {}
    for part in parts:
        segments.setdefault(part.segment, []).append(part)
    return list(segments.values())[:-1]


class CompactionRun(Protocol):
    """Runs one transaction that commits only for the lease's owner, such as ``Transactions.run``."""

    def __call__(self, work: Callable[[sa.Connection], T], /) -> T:
        """Return the result of ``work``, which may be called again if the transaction fails."""
        ...


class Compacted(NamedTuple):
    """Result of a compaction."""

    segments: int = 0
    """Number of rewritten segments."""
    entries: int = 0
    """Number of removed entries."""
    bytes: int = 0
    """Number of freed bytes."""
    damaged: LogDamagedError | None = None
    """The first file that is lost or damaged: its segment stays as it is."""

    def plus(self, other: Compacted) -> Compacted:
        """Return the sum of both."""
        return Compacted(
            self.segments + other.segments,
            self.entries + other.entries,
            self.bytes + other.bytes,
            self.damaged or other.damaged,
        )


class Compactor:
    """Compacts the log of one source, for the pipeline's owner; one at a time."""

    def __init__(
        self, folder: LogFolder, store: LogStore, run: CompactionRun, retention: LogRetention | None = None
    ) -> None:
        self._folder, self._retention = replace(folder, is_inspected=True), retention
        self._store = store
        self._run = run
        self._source = folder.source

    def compact(
        self,
        consumers: Sequence[str],
        now_us: int | None = None,
        tell: Callable[[sa.Connection, Compacted], None] = lambda connection, done: None,
    ) -> Compacted:
        """Compact the closed segments beyond the retention. ``consumers``: all of the log's, even without an ack.

        ``tell`` is called in the transaction of each segment, with all that is removed by then. Repeating it changes
        nothing. Files are removed while others read them: a reader that finds one missing reloads
        the manifest (:func:`read_current`).
        """
        reached("before-compact", self._folder.pipeline)
        segments, offsets = self._clean()
        done = Compacted()
        if anything_handled(consumers, offsets):
            highest = highest_handled(consumers, offsets)
            now_us = time.time_ns() // 1000 if now_us is None else now_us
            segments = beyond_retention(self._folder, segments, self._retention, now_us)
            for parts in self._run(partial(self._free, segments)):
                if parts[0].first <= highest:
                    try:
                        done = self._compact(parts, CompactionRule(consumers, offsets), done, tell)
                    except LogDamagedError as error:
                        # what is delivered already, as most of this is, must not hold up what is not
                        done = done.plus(Compacted(damaged=error))
        reached("after-compact", self._folder.pipeline)
        return done

    def _clean(self) -> tuple[Segments, ByConsumer]:
        """Remove files of closed segments that the manifest lacks, publish the others; return segments and offsets."""
        found = {parts[0].segment: self._folder.names(parts[0].segment) for parts in self._run(self._closed)[0]}
        # Read after listing the files, as the lease's owner: a file still being written belongs either to this owner,
        # which writes nothing now, or to an earlier one, whose transaction will be refused.
        closed, offsets = self._run(self._closed)
        for parts in closed:
            segment, named = parts[0].segment, {part.name for part in parts}
            for name in found.get(segment, []):
                if shown(name) in named:
                    self._folder.publish_name(segment, shown(name))
                else:
                    discard_file(storage.join(self._folder.segment(segment), name))
        return closed, offsets

    def _closed(self, connection: sa.Connection) -> tuple[Segments, ByConsumer]:
        offsets = offsets_of(connection, self._folder.pipeline, self._source)
        return closed_segments(self._store.parts(connection, self._source)), offsets

    def _free(self, segments: Segments, connection: sa.Connection) -> Segments:
        """Return the segments that no other pipeline's reader needs any more: no file is removed under a reading task.

        A reader's offset is durable before it counts here, so it never reads segments behind it again.
        """
        held = held_from(connection, self._folder.pipeline, self._source)
        return [parts for parts in segments if held is None or parts[-1].next <= held]

    def _compact(
        self,
        old: list[LogPart],
        retention: CompactionRule,
        done: Compacted,
        tell: Callable[[sa.Connection, Compacted], None],
    ) -> Compacted:
        """Compact a segment; return ``done``, what is removed before it, with what is removed of it."""
        before = sum(part.entries for part in old)
        for batch in read(self._folder, old, columns=["namespace"]):
            retention.see(batch)
        if retention.count == before:
            return done
        verify(self._folder, old)  # damage must not become permanent
        new = self._rewritten(old, retention)
        then = done.plus(Compacted(1, before - new.entries, sum(part.bytes for part in old) - new.bytes))
        reached("after-compact-write", self._folder.pipeline)

        def swap(connection: sa.Connection) -> bool:
            # checked again in the deciding transaction: a reader may have been added or rewound meanwhile
            is_free = bool(self._free([old], connection))
            if not (is_free and self._store.swap(connection, self._source, old, new)):
                return False
            tell(connection, then)
            return True

        if not self._run(swap):
            return done
        # from here the manifest lists the new file: the old ones may be removed, now or by the next compaction
        reached("after-compact-swap", self._folder.pipeline)
        self._folder.publish_name(new.segment, new.name)
        for part in old:
            discard_file(storage.join(self._folder.segment(part.segment), part.name))
            reached("mid-compact-remove", self._folder.pipeline)
        return then

    def _rewritten(self, old: list[LogPart], retention: CompactionRule) -> LogPart:
        first, last = old[0], old[-1]
        file = PartFile(self._folder.segment(first.segment), first.first, secrets.token_hex(8))
        try:
            written = self._write(file, old, retention)
        except Exception:
            file.abort()
            raise
        self._folder.sync(first.segment)
        return LogPart(
            first.first, last.next, first.segment, written.name, written.entries, written.bytes, written.sha256,
            written.nacked, True, last.position,
        )  # fmt: skip

    def _write(self, file: PartFile, old: list[LogPart], retention: CompactionRule) -> Written:
        for batch in read(self._folder, old):
            file.write(batch.filter(pa.array(retention.stays(batch))))
            reached("mid-compact-write", self._folder.pipeline)
        written = file.finish()
        assert written is not None  # each namespace keeps its last entry
        return written
