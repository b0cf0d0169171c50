"""Logs and positions of sources, and parsing of operators' times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
import sqlalchemy as sa
from pydantic_core import PydanticCustomError

from conduit_dagster.commit_log.entries import Batch, Entry, decode_entries
from conduit_dagster.commit_log.segment_files import read_current
from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.commit_log.splits import LogManifest
from conduit_dagster.config.scalars import parse_age
from conduit_dagster.daemon_threads import BY_HAND, answer_within
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.operate.operator_errors import chosen, never_ran, refused
from conduit_dagster.engine.plugin_results import counts_at, lag_at, lag_seconds_at
from conduit_dagster.engine.registering import attach_kept_to_look
from conduit_dagster.record import Mode
from conduit_dagster.sdk import Source
from conduit_dagster.secret_values import masked
from conduit_dagster.state.database import reading
from conduit_dagster.state.log_store import Segment
from conduit_dagster.state.overview import collection_rows, log_names, pipeline_rows
from conduit_dagster.state.pipeline_state import PipelineState, SourceState, load

T = TypeVar("T")
Facts = dict[str, Any]
_LAST = 2**63 - 1
"""Latest time that the store can hold, in ns."""


def moment(text: str, now_ns: int, option: str) -> int:
    """Parse a time to ns: an age before ``now_ns``, or ISO 8601, in UTC if it has no zone, as times are shown.

    Raises ``FatalError`` (``usage.since``); ``option`` is the option that holds the text.
    """
    try:
        if (age := parse_age(text)) >= 0:
            return max(0, now_ns - int(age * 1e9))
    except PydanticCustomError:
        pass  # then it must be a time
    try:
        given = datetime.fromisoformat(text)
        return min(max(0, int((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1e9)), _LAST)
    except (ValueError, OverflowError):
        fix = "write how long ago, such as 30m, 2h or 7d, or a time such as 2026-08-02T10:00Z"
        raise refused("usage.since", f"{option} {text} is neither an age nor a time", fix) from None


class LogView(LogManifest):
    """The log of one source, as currently listed in the state store. Safe to read while the pipeline runs."""

    def __init__(self, database: sa.Engine, pipeline: str, source: str, base: str) -> None:
        def read(work: Callable[[sa.Connection], T]) -> T:
            with reading(database) as connection:
                return work(connection)

        super().__init__(read, LogFolder(base, pipeline, source, is_inspected=True))

    def segments(self) -> list[Segment]:
        """Return the segments; the last one is active."""
        return self._read(lambda connection: self._store.segments(connection, self.source))

    def blocks(self, start: int, stop: int | None = None, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """Return the entries; where compaction removed some, the next surviving ones (CASES C18)."""
        return read_current(self.folder, self.parts, start, stop, columns)

    def entries(self, start: int, stop: int | None = None) -> Iterator[Entry]:
        """Yield the same entries, one by one."""
        for batch in self.blocks(start, stop):
            yield from decode_entries(batch)

    def whole_from(self) -> int:
        """Return the offset from which no entry is missing: a step never reads a range with gaps."""
        return self._read(lambda connection: self._store.whole_from(connection, self.source))

    def offset_since(self, at_ns: int, as_kept: bool = False) -> int:
        """Return the offset of the first entry logged at or after a time; the end of the log if none was.

        Reads the times of all entries before it. If the clock was set back, the first such entry counts: earlier
        entries may be included, but none is left out. Raises ``FatalError`` (``log.gone``) if older entries of that
        time may have been removed, unless the remaining ones suffice (``as_kept``).
        """
        first, end = self.whole_from(), self.state().next_offset
        found = self._first_since(first, -(-at_ns // 1000))
        place = end if found is None else found
        if first and place == first and not as_kept:
            raise refused(
                "log.gone",
                f"the log of {self.source} holds every record from offset {first} on; some of those before are gone,"
                " and may have been logged after that time",
                f"rewind to offset {first}, or to a later time; delivery.log-retention keeps them longer",
            )
        return place

    def _first_since(self, start: int, at_us: int) -> int | None:
        for batch in self.blocks(start, None, ("timestamp",)):
            later = batch.column("timestamp").cast(pa.int64()).to_numpy() >= at_us
            if later.any():
                return int(batch.column("offset")[int(later.argmax())].as_py())
        return None


def logs_of(database: sa.Engine, pipeline: str, base: str) -> list[LogView]:
    """Return every log of a pipeline; none if it logs positions only."""
    return [LogView(database, pipeline, name, base) for name in log_names(database, pipeline)]


def log_of(database: sa.Engine, pipeline: str, base: str, source: str | None) -> LogView:
    """Return the log of ``source``, or the only one.

    Raises ``FatalError`` (``pipeline.never_ran``, ``log.positions_only``, ``usage.*``).
    """
    views = {view.source: view for view in logs_of(database, pipeline, base)}
    if not views:
        raise no_log(pipeline) if pipeline in pipeline_rows(database) else never_ran(pipeline)
    return views[chosen("source", source, list(views), pipeline)]


def no_log(pipeline: str, more: str = "") -> Exception:
    """Return the error for a pipeline without a log of records."""
    return refused(
        "log.positions_only",
        f"pipeline {pipeline} keeps no log of records: the ranges of positions of its steps are its log{more}",
        "set delivery.log: records in its file: from the next run on every record is kept",
    )


def beyond(view: LogView, offset: int) -> Exception:
    """Return the error for an offset that was never logged."""
    last = view.state().next_offset - 1
    has = f"the newest one of {view.source} is {last}" if last >= 0 else f"nothing of {view.source} is logged yet"
    fix = f"conduit-dagster log current {view.folder.pipeline} shows it"
    return refused("log.beyond_end", f"offset {offset} is beyond the log's end: {has}", fix)


def stored(database: sa.Engine, pipeline: str) -> PipelineState | None:
    """Return the current state; None for a pipeline that never ran."""
    if pipeline not in pipeline_rows(database):
        return None
    with reading(database) as connection:
        return load(connection, pipeline)


def joined_of(state: PipelineState) -> dict[str, str]:
    """Return the sources that are members of a join, each with the join's name."""
    joins = {name: one for name, one in state.sources.items() if one.unit.get("plugin") == "join"}
    return {member: name for name, join in joins.items() for member in join.position}


def handled_of(state: PipelineState, source: str) -> Any:
    """Return the position up to which a source is handled; that of the join for a member, whose own does not move."""
    join = joined_of(state).get(source)
    return state.sources[source].position if join is None else state.sources[join].position[source]


def position_facts(database: sa.Engine, pipeline: str, bound: BoundPipeline | None, base: str) -> list[Facts]:
    """Return a row per source, with lag if the source knows it and the pipeline's file is available (``bound``)."""
    state = stored(database, pipeline)
    if state is None:
        return []
    if bound is not None:
        attach_kept_to_look(bound.compiled, database)
    logs = {view.source: view for view in logs_of(database, pipeline, base)}
    joined = joined_of(state)
    rows = collection_rows(database, pipeline)
    collections = {name: [row for row in rows if row["source"] == name] for name in state.sources}
    return [
        _facts(name, one, joined, state, logs.get(name), _source(bound, name), collections[name])
        for name, one in state.sources.items()
    ]


def _source(bound: BoundPipeline | None, name: str) -> Source | None:
    inputs = bound.compiled.sources if bound else ()
    return next((node.source for node in inputs if node.id == name), None)


def _facts(
    name: str,
    one: SourceState,
    joined: dict[str, str],
    state: PipelineState,
    log: LogView | None,
    source: Source | None,
    collections: list[Facts],
) -> Facts:
    join = joined.get(name)
    # a member's own row does not move while the join moves
    position = one.position if join is None else state.sources[join].position[name]
    read = position if log is None else log.state().position
    return {
        "id": name,
        "generation": one.generation,
        "position": position,
        "offset": position if log is not None else one.records,
        "unit": {key: masked(value) if isinstance(value, str) else value for key, value in one.unit.items()},
        "joined": join,
        "log": None if log is None else _log_facts(log, position),
        "lag": None if source is None else lag_of(source, read),
        "counts": {} if source is None else _told(source, lambda: counts_at(source, read), {}),
        "lag_unit": None if source is None else source.lag_unit,
        "lag_seconds": None if source is None else _told(source, lambda: lag_seconds_at(source, read), None),
        "collections": _collections(
            collections, {} if source is None else _told(source, lambda: source.collection_modes(read), {})
        ),
    }


def _collections(rows: list[Facts], own: Mapping[str, Mode]) -> list[Facts]:
    """Return the state of each collection. ``own``: the source's own modes, which include unread collections."""
    stored = {row["namespace"]: {key: row[key] for key in ("namespace", "mode", "offset")} for row in rows}
    told = {
        name: {"namespace": name, "offset": None, **stored.get(name, {}), "mode": mode} for name, mode in own.items()
    }
    return list((stored | told).values())


def _log_facts(log: LogView, position: int) -> Facts:
    state = log.state()
    return {
        "logged_upto": state.next_offset - 1,
        "handled_upto": position - 1,
        "waiting": state.next_offset - position,
        "source_position": state.position,
    }


def lag_of(source: Source, position: Any) -> int | None:
    """Return a source's lag; None if unknown, or if the source raises or does not answer."""
    return _told(source, lambda: lag_at(source, position), None)


def _told(source: Source, ask: Callable[[], T], otherwise: T) -> T:
    """Return the source's answer, or ``otherwise``: a status query must not fail or hang because of a source."""
    try:
        return answer_within(source, ask, BY_HAND)
    except Exception:  # noqa: BLE001  # any plugin's code
        return otherwise
