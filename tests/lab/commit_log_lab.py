"""A commit log on a real store and real files, with helpers for tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from conduit_dagster.commit_log.compaction import Compacted, Compactor
from conduit_dagster.commit_log.entries import decode_entries, encode_block
from conduit_dagster.commit_log.segment_files import PartFile, read_current
from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.config.delivery import LogRetention
from conduit_dagster.record import COLLECTION, Nack, Record
from conduit_dagster.state.database import reading
from conduit_dagster.state.delivery_store import move_offsets
from conduit_dagster.state.log_store import LogPart, LogStore

T = TypeVar("T")
PIPELINE, SOURCE = "p", "p:in"
LOGGED_AT_US = 1_491_252_302_000_000
"""Time at which every entry was logged."""


class Seen(NamedTuple):
    """Fields of an entry that tests compare."""

    offset: int
    namespace: str
    after: Any
    nack: str | None = None


def surviving(namespaces: Sequence[str], segments: Sequence[int], handled: Callable[[int, str], bool]) -> list[int]:
    """Model of compaction: return the remaining offsets of a log whose segments begin at these, the last one active."""
    kept: list[int] = []
    for first, end in zip(segments, [*segments[1:], len(namespaces)], strict=True):
        last = {namespaces[offset]: offset for offset in range(first, end)}
        kept += [
            offset
            for offset in range(first, end)
            if first == segments[-1] or last[namespaces[offset]] == offset or not handled(offset, namespaces[offset])
        ]
    return kept


class LogLab:
    """Appends records of given namespaces; record ``i`` overall has the payload ``i``."""

    def __init__(self, base: str, database: sa.Engine, source: str = SOURCE) -> None:
        self.base, self.database, self.source = base, database, source
        self.folder = LogFolder(base, PIPELINE, source)
        self.store = LogStore(PIPELINE)

    def run(self, work: Callable[[sa.Connection], T], /) -> T:
        """Run one transaction."""
        with self.database.begin() as connection:
            return work(connection)

    def look(self, work: Callable[[sa.Connection], T], /) -> T:
        """Read from the store."""
        with reading(self.database) as connection:
            return work(connection)

    def append(
        self,
        namespaces: Sequence[str],
        *,
        files: int = 1,
        size: int = 1_000_000_000,
        nacked: Sequence[int] = (),
        publish: bool = True,
    ) -> list[LogPart]:
        """Append one record per namespace, in this many files of one segment. ``nacked``: offsets."""
        first = self.look(lambda c: self.store.state(c, self.source)).next_offset
        segment = self.look(lambda c: self.store.active(c, self.source)).for_append(first, size)
        share = -(-len(namespaces) // files)
        parts = [
            self.write(segment, first + start, namespaces[start : start + share], nacked)
            for start in range(0, len(namespaces), share)
        ]
        self.folder.sync(segment)
        self.run(lambda c: self.store.commit(c, self.source, parts, parts[-1].position))
        for part in parts if publish else ():
            self.folder.publish_name(segment, part.name)
        return parts

    def write(self, segment: int, first: int, namespaces: Sequence[str], nacked: Sequence[int] = ()) -> LogPart:
        """Write a complete file that is not in the manifest."""
        file = PartFile(self.folder.segment(segment), first, secrets.token_hex(8))
        records = [
            Record(first + place, {COLLECTION: namespace}, str(first + place).encode())
            for place, namespace in enumerate(namespaces)
        ]
        nacks = {offset - first: ("node", Nack("bad", "no")) for offset in nacked if 0 <= offset - first < len(records)}
        file.write(encode_block(self.source, first, records, None, LOGGED_AT_US, nacks))
        written = file.finish()
        assert written is not None
        return written.appended(segment, {"at": first + len(records)})

    def roll(self) -> None:
        """Close the active segment: the next append begins another."""
        self.append(["roll"], size=0)

    def move(self, consumer: str, **offsets: int) -> None:
        """Set offsets of namespaces; ``all`` is the source's overall one."""
        moves = {self.source: {"*" if name == "all" else name: offset for name, offset in offsets.items()}}
        self.run(lambda c: move_offsets(c, PIPELINE, [consumer], moves))

    def parts(self, start: int = 0, stop: int | None = None) -> list[LogPart]:
        """Return the manifest."""
        return self.look(lambda c: self.store.parts(c, self.source, start, stop))

    def read(self, start: int = 0, stop: int | None = None, block: int = 4096) -> list[Seen]:
        """Return the entries of a range."""
        return [
            Seen(entry.offset, entry.namespace, entry.record.after, entry.nack and entry.nack[0])
            for batch in read_current(self.folder, self.parts, start, stop, block=block)
            for entry in decode_entries(batch)
        ]

    def offsets(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the offsets of a range."""
        return [seen.offset for seen in self.read(start, stop)]

    def compact(self, *consumers: str, retention: LogRetention | None = None, now: float | None = None) -> Compacted:
        """Compact for these consumers. ``now``: seconds after the entries were logged."""
        now_us = None if now is None else LOGGED_AT_US + round(now * 1_000_000)
        return Compactor(self.folder, self.store, self.run, retention).compact(consumers, now_us)
