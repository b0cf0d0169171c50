"""Pipelines that read another pipeline's log, and the progress of each.

A reader is identified by its own source's row, which names the log. Its position moves in the same transaction that
ends its step, so no ack can be lost on the way to the other pipeline, and none can come too early.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, cast

import sqlalchemy as sa

from conduit_dagster.node_ids import node_id
from conduit_dagster.state.history import record_event
from conduit_dagster.state.log_store import LogStore
from conduit_dagster.state.pipeline_state import DROPPED, LOGGED, OPEN
from conduit_dagster.state.row_statements import update
from conduit_dagster.state.tables import generations, logs, pipelines, sources, steps

PLUGIN = "pipeline"
"""Plugin name in the unit of a source that reads another pipeline."""


class ReadingSource(NamedTuple):
    """A source that reads the log of another pipeline's source."""

    pipeline: str
    connector: str
    of: tuple[str, str]
    """Pipeline and source of the log that it reads."""
    offset: int
    """The first offset that the reader still needs."""
    dropped: bool = False

    @property
    def name(self) -> str:
        """The reader's name as operators see it."""
        return node_id(self.pipeline, self.connector)


class OutputReader(NamedTuple):
    """A source that reads the output of another pipeline's destination."""

    pipeline: str
    connector: str
    of: tuple[str, str]
    """Pipeline and destination whose output it reads."""
    output: str
    """Path of the output; relative to the project if it is inside."""
    position: dict[str, Any]


def log_unit(pipeline: str, source: str) -> dict[str, Any]:
    """Return the unit of a source that reads another pipeline's log."""
    return {"plugin": PLUGIN, "pipeline": pipeline, "source": source}


def log_of(unit: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the log that a source reads; None if it is no reader: a project's own plugin may have the same name."""
    return _named(unit, "source")


def _named(unit: Mapping[str, Any], kind: str) -> tuple[str, str] | None:
    of = unit.get("pipeline"), unit.get(kind)
    is_reader = unit.get("plugin") == PLUGIN and all(isinstance(name, str) for name in of)
    return cast(tuple[str, str], of) if is_reader else None


def output_readers(connection: sa.Connection) -> Iterator[OutputReader]:
    """Yield the sources of all pipelines that read an output, each at the position up to which it has taken it."""
    for pipeline, connector, unit, position in _chained(connection):
        of, output = _named(unit, "destination"), unit.get("output")
        if of is not None and isinstance(output, str) and isinstance(position, dict):
            yield OutputReader(pipeline, connector, of, output, cast(dict[str, Any], position))


def step_of(name: str) -> int:
    """Return the other pipeline's step that published a part, from its name in the folder."""
    return int(name.removeprefix("step=").partition("-")[0])


def output_steps(connection: sa.Connection, pipeline: str) -> dict[str, int]:
    """Return the step up to which every reader has taken a folder of parts, for each destination that has readers."""
    slowest: dict[str, int] = {}
    for reader in output_readers(connection):
        (of, destination), name = reader.of, reader.position.get("file")
        if of == pipeline and name:
            slowest[destination] = min(step_of(name), slowest.get(destination, step_of(name)))
    return slowest


def _every(connection: sa.Connection) -> Iterator[ReadingSource]:
    for pipeline, connector, unit, position in _chained(connection):
        if (log := log_of(unit)) is not None and isinstance(position, int):
            yield ReadingSource(pipeline, connector, log, position, DROPPED in unit)


def _chained(connection: sa.Connection) -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    """Yield pipeline, connector, unit and own position of each source that reads another pipeline."""
    # a reader that logs its records itself has all records that it took in its own log
    own = sa.and_(logs.c.pipeline == sources.c.pipeline, logs.c.source == sources.c.source)
    columns = (sources.c.pipeline, sources.c.source, sources.c.unit, sources.c.position, logs.c.position.label("read"))
    query = sa.select(*columns).join_from(sources, logs, own, isouter=True)
    query = query.where(sources.c.unit.like(f'%"plugin": "{PLUGIN}"%'))
    for row in connection.execute(query.order_by(sources.c.pipeline, sources.c.source)).mappings():
        unit = json.loads(row["unit"])
        position = json.loads(row["read"] if unit.get(LOGGED) and row["read"] is not None else row["position"])
        yield row["pipeline"], row["source"], unit, position


def readers_of(connection: sa.Connection, pipeline: str, source: str | None = None) -> list[ReadingSource]:
    """Return the readers of a pipeline's logs, or of one source's log, without dropped ones."""
    readers = every_reader_of(connection, pipeline)
    return [reader for reader in readers if source in (None, reader.of[1]) and not reader.dropped]


def every_reader_of(connection: sa.Connection, pipeline: str) -> list[ReadingSource]:
    """Return the readers of a pipeline's logs, including dropped ones."""
    return [reader for reader in _every(connection) if reader.of[0] == pipeline]


def forget_left(connection: sa.Connection, pipeline: str) -> None:
    """Forget where sources that now read other data left a pipeline's logs: they mean nothing in logs that begin anew.

    Their generations stay taken.
    """
    columns = (generations.c.pipeline, generations.c.source, generations.c.generation, generations.c.unit)
    query = sa.select(*columns).where(generations.c.unit.like(f'%"plugin": "{PLUGIN}"%'), generations.c.position != "")
    for row in connection.execute(query).mappings().all():
        log = log_of(json.loads(row["unit"]))
        if log is not None and log[0] == pipeline:
            key = {name: row[name] for name in ("pipeline", "source", "generation")}
            update(connection, generations, key, {"position": ""})


def drop(connection: sa.Connection, reader: ReadingSource, by: str) -> None:
    """Stop keeping the log for a reader. It keeps its position: on return it resumes there, or reports the gap."""
    _mark(connection, reader, True)
    detail = {"reader": reader.name, "log": ":".join(reader.of), "offset": reader.offset, "by": by}
    for pipeline in (reader.pipeline, reader.of[0]):
        record_event(connection, pipeline, "reader_dropped", **detail)


def _mark(connection: sa.Connection, reader: ReadingSource, dropped: bool) -> None:
    mine = {"pipeline": reader.pipeline, "source": reader.connector}
    unit = json.loads(connection.execute(sa.select(sources.c.unit).filter_by(**mine)).scalar_one())
    unit.pop(DROPPED, None)
    text = json.dumps({**unit, **({DROPPED: True} if dropped else {})}, sort_keys=True)
    update(connection, sources, mine, {"unit": text})


class ReaderRegistry:
    """Registry of the logs that one pipeline reads, within a transaction of ``PipelineStore.registering``."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline

    def admit(self, source: str, unit: Mapping[str, Any], initial: Any) -> Any:
        """Return where a new source begins: ``initial``, or, if it reads a log, the oldest offset without later gaps.

        Call before the source itself is registered. A dropped reader is readmitted.
        """
        for reader in self._own():
            if reader.connector == source and reader.dropped:
                _mark(self._connection, reader, False)
                record_event(self._connection, self._id, "reader_back", reader=reader.name, offset=reader.offset)
        log = log_of(unit)
        if log is None:
            return initial
        # no reader is admitted during a compaction, which holds this row until its files are swapped
        row = sa.select(pipelines.c.epoch).where(pipelines.c.pipeline == log[0])
        self._connection.execute(row.with_for_update())
        return oldest(self._connection, *log)

    def retire(self, present: Collection[str]) -> None:
        """Drop the readers among the sources that are no longer in the file."""
        if self._has_open_steps():
            return  # a step that reads one of them can still be finished, once the file has it again
        for reader in self._own():
            if reader.connector not in present and not reader.dropped:
                drop(self._connection, reader, "the pipeline's file")

    def _own(self) -> list[ReadingSource]:
        return [reader for reader in _every(self._connection) if reader.pipeline == self._id]

    def _has_open_steps(self) -> bool:
        mine = (steps.c.pipeline == self._id, steps.c.state.in_(OPEN))
        return self._connection.execute(sa.select(steps.c.step).where(*mine)).first() is not None


def oldest(connection: sa.Connection, pipeline: str, source: str) -> int:
    """Return the first offset of a log from which none is missing; 0 if nothing is logged yet."""
    log = LogStore(pipeline)
    return log.whole_from(connection, source) if log.state(connection, source).next_offset else 0
