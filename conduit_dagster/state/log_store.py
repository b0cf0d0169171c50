"""The manifest of the commit logs: the offsets in each file. The records are in the files, never here.

Every function takes a connection, so that it can be part of a larger transaction of the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.row_statements import insert, put
from conduit_dagster.state.tables import log_parts, logs, sources


class LogPart(msgspec.Struct, frozen=True):
    """One file of the log."""

    first: int
    """The first offset that its range covers."""
    next: int
    """The first offset after its range."""
    segment: int
    """The first offset of its segment."""
    name: str
    entries: int
    """Number of entries: ``next - first`` until it is compacted, then fewer."""
    bytes: int
    sha256: str
    nacked: int = 0
    """Entries that a node nacked before they were logged."""
    compacted: bool = False
    position: Any = None
    """The source's position after its last entry; a JSON value."""


class LogState(NamedTuple):
    """Extent of a source's log."""

    next_offset: int
    position: Any
    """The source's position up to which it is logged; None if nothing is logged."""


class Segment(NamedTuple):
    """A range of the log that is compacted as a whole."""

    first: int
    next: int
    parts: int
    entries: int
    nacked: int
    bytes: int
    active: bool
    """Whether it is the newest segment, the only one that is appended to."""


class ActiveSegment(NamedTuple):
    """The segment that is appended to."""

    first: int
    bytes: int

    def for_append(self, offset: int, size: int) -> int:
        """Return the segment of an append at ``offset``: this one, or a new one once it has ``size`` bytes.

        Source: CASES C19.
        """
        return self.first if self.bytes < size else offset

    def with_parts(self, segment: int, parts: Sequence[LogPart]) -> ActiveSegment:
        """Return the segment that is appended to after an append of these files to ``segment``."""
        return ActiveSegment(segment, sum(part.bytes for part in parts) + (self.bytes if segment == self.first else 0))


class LogStore:
    """The manifest of one pipeline's logs. Only the pipeline's owner may change it."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    def state(self, connection: sa.Connection, source: str) -> LogState:
        """Return the offset and the source's position at which the next append continues."""
        row = connection.execute(sa.select(logs).where(*self._log(source))).mappings().first()
        return LogState(0, None) if row is None else LogState(row["next_offset"], json.loads(row["position"]))

    def active(self, connection: sa.Connection, source: str) -> ActiveSegment:
        """Return the segment that is appended to; without a file yet the one that the next append begins.

        Reads all files of the segment.
        """
        part = log_parts.c
        newest = sa.select(part.segment).where(*self._parts(source)).order_by(part.first.desc()).limit(1)
        first = connection.execute(newest).scalar_one_or_none()
        if first is None:
            return ActiveSegment(self.state(connection, source).next_offset, 0)
        mine = (*self._parts(source), part.first >= first, part.segment == first)
        size = connection.execute(sa.select(sa.func.sum(part.bytes)).where(*mine)).scalar_one()
        return ActiveSegment(first, int(size))

    def position_before(self, connection: sa.Connection, source: str, offset: int) -> Any:
        """Return the source's position after the last file that ends at or before ``offset``; None if no file does."""
        # the first condition follows from the second, and spares the index the files behind the offset
        where = (*self._parts(source), log_parts.c.first < offset, log_parts.c.next <= offset)
        newest = sa.select(log_parts.c.position).where(*where).order_by(log_parts.c.first.desc()).limit(1)
        text = connection.execute(newest).scalar_one_or_none()
        return None if text is None else json.loads(text)

    def commit(self, connection: sa.Connection, source: str, parts: Sequence[LogPart], position: Any) -> None:
        """Commit an append to the log. Its files must already be durable, and their folder synced.

        Raises ``FatalError`` if the parts do not continue the log.
        """
        offset = self.state(connection, source).next_offset
        for part in parts:
            if part.first != offset or part.next <= part.first:
                raise _gap(source, offset, part)
            offset = part.next
        insert(connection, log_parts, [self._row(source, part) for part in parts])
        own = {"pipeline": self._pipeline, "source": source}
        put(connection, logs, [{**own, "next_offset": offset, "position": json.dumps(position)}])

    def parts(self, connection: sa.Connection, source: str, start: int = 0, stop: int | None = None) -> list[LogPart]:
        """Return the files that overlap ``start <= offset < stop``, in order."""
        part = log_parts.c
        where = [*self._parts(source), part.next > start]
        if start:
            # files don't overlap: the index need not be read before the one in which the range begins
            at_start = sa.select(part.first).where(*self._parts(source), part.first <= start)
            first = at_start.order_by(part.first.desc()).limit(1).scalar_subquery()
            where.append(part.first >= sa.func.coalesce(first, start))
        if stop is not None:
            where.append(part.first < stop)
        rows = connection.execute(sa.select(log_parts).where(*where).order_by(part.first)).mappings()
        return [_part(row) for row in rows]

    def whole_from(self, connection: sa.Connection, source: str) -> int:
        """Return the offset from which no entry of the log is missing.

        Of a file that compaction has rewritten it is not known which entries are left, except those that the pipeline
        has not handled: they are never removed, also where the file holds handled ones as well.
        """
        whole = _whole_from(self.parts(connection, source), self.state(connection, source).next_offset)
        joined = next(
            (position[source] for _, position in joins_of(connection, self._pipeline) if source in position), None
        )
        if joined is not None:
            return min(whole, joined)
        own = sa.select(sources.c.position).filter_by(pipeline=self._pipeline, source=source)
        text = connection.execute(own).scalar_one_or_none()
        return whole if text is None else min(whole, json.loads(text))

    def segments(self, connection: sa.Connection, source: str) -> list[Segment]:
        """Return the segments in order; the last one is active."""
        part = log_parts.c
        sums = (sa.func.count(), sa.func.sum(part.entries), sa.func.sum(part.nacked), sa.func.sum(part.bytes))
        query = (
            sa.select(part.segment, sa.func.max(part.next), *sums)
            .where(*self._parts(source))
            .group_by(part.segment)
            .order_by(part.segment)
        )
        rows = [tuple(map(int, row)) for row in connection.execute(query)]
        return [Segment(*row, active=row is rows[-1]) for row in rows]

    def swap(self, connection: sa.Connection, source: str, old: Sequence[LogPart], new: LogPart) -> bool:
        """Replace all files of a segment by a compacted one; return False if they are no longer the ``old`` ones."""
        mine = (*self._parts(source), log_parts.c.segment == new.segment)
        names = set(connection.execute(sa.select(log_parts.c.name).where(*mine)).scalars())
        if names != {part.name for part in old}:
            return False
        connection.execute(sa.delete(log_parts).where(*mine))
        insert(connection, log_parts, [self._row(source, new)])
        return True

    def _log(self, source: str) -> tuple[sa.ColumnElement[bool], ...]:
        return logs.c.pipeline == self._pipeline, logs.c.source == source

    def _parts(self, source: str) -> tuple[sa.ColumnElement[bool], ...]:
        return log_parts.c.pipeline == self._pipeline, log_parts.c.source == source

    def _row(self, source: str, part: LogPart) -> dict[str, Any]:
        own = {"compacted": int(part.compacted), "position": json.dumps(part.position)}
        return {"pipeline": self._pipeline, "source": source, **msgspec.structs.asdict(part), **own}


def joins_of(connection: sa.Connection, pipeline: str) -> list[tuple[str, dict[str, int]]]:
    """Return each joined source of a pipeline with the offset of each member."""
    # in the statement, because positions of other sources may be long
    mine = (sources.c.pipeline == pipeline, sources.c.unit.like('%"plugin": "join"%'))
    rows = connection.execute(sa.select(sources).where(*mine)).mappings().all()
    joins = [row for row in rows if json.loads(row["unit"]).get("plugin") == "join"]
    return [(row["source"], json.loads(row["position"])) for row in joins]


def _whole_from(parts: Sequence[LogPart], end: int) -> int:
    """Return the offset from which none is missing in these files of a log that ends before offset ``end``."""
    first, expected = end, end
    for part in reversed(parts):
        if part.next != expected or part.entries != part.next - part.first:
            return first
        first = expected = part.first
    return first


def _part(row: Mapping[Any, Any]) -> LogPart:
    values: dict[str, Any] = {name: row[name] for name in LogPart.__struct_fields__}
    values.update(compacted=bool(row["compacted"]), position=json.loads(row["position"]))
    return LogPart(**values)


def _gap(source: str, offset: int, part: LogPart) -> FatalError:
    return FatalError(
        f"the log of {source} goes on at offset {offset}, and {part.name} holds {part.first} to {part.next - 1}",
        code="log.gap",
        place=part.name,
        fix="two runs appended at once, or the state store was restored from an older copy: report it",
    )


learn(LogPart)
