"""Writes of operators. Each is part of a transaction that commits only under the lease's epoch."""

from __future__ import annotations

import json
import time
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state.consumer_offsets import EVERYTHING, set_offsets
from conduit_dagster.state.generations import LOGGED, Generations
from conduit_dagster.state.tables import collections, consumers, logs, offsets, sources, steps


def put_offset(connection: sa.Connection, pipeline: str, consumer: str, source: str, upto: int) -> None:
    """Set a consumer's offset in a source, forward or back; below 0: nothing is handled."""
    if upto >= 0:
        set_offsets(connection, pipeline, consumer, source, {EVERYTHING: upto}, time.time_ns())
        return
    mine = (offsets.c.pipeline == pipeline, offsets.c.consumer == consumer, offsets.c.source == source)
    connection.execute(sa.delete(offsets).where(*mine))


def put_offsets(connection: sa.Connection, pipeline: str, source: str, upto: int) -> None:
    """Set the offset of every consumer, as :func:`put_offset`."""
    known = sa.select(consumers.c.consumer).where(consumers.c.pipeline == pipeline)
    for consumer in list(connection.execute(known).scalars()):
        put_offset(connection, pipeline, consumer, source, upto)


def move_source(connection: sa.Connection, pipeline: str, source: str, position: Any, records: int | None) -> None:
    """Set a source's position; ``records`` None: offsets keep counting."""
    values: dict[str, Any] = {"position": json.dumps(position)}
    if records is not None:
        values["records"] = records
    connection.execute(sa.update(sources).where(*_source(pipeline, source)).values(**values))


def renew_source(connection: sa.Connection, pipeline: str, source: str) -> int:
    """Give a source a new generation, so that new names never collide with old ones; return it."""
    mine = _source(pipeline, source)
    unit = json.loads(connection.execute(sa.select(sources.c.unit).where(*mine)).scalar_one())
    unit.pop(LOGGED, None)
    generation = Generations(connection, pipeline).new(source, json.dumps(unit, sort_keys=True))
    connection.execute(sa.update(sources).where(*mine).values(generation=generation))
    return generation


def _source(pipeline: str, source: str) -> tuple[sa.ColumnElement[bool], ...]:
    return sources.c.pipeline == pipeline, sources.c.source == source


def drop_planned(connection: sa.Connection, pipeline: str) -> None:
    """Void the steps that are planned but not prepared: a prepared one is never taken back."""
    planned = (steps.c.pipeline == pipeline, steps.c.state == "planned")
    connection.execute(sa.update(steps).where(*planned).values(state="void"))


def forget_collections(connection: sa.Connection, pipeline: str, source: str, first: int) -> None:
    """Forget how far a collection's copy was: it is unknown once its last record is to come again."""
    mine = (collections.c.pipeline == pipeline, collections.c.source == source)
    connection.execute(sa.delete(collections).where(*mine, collections.c.offset >= first))


def begin_log_at(connection: sa.Connection, pipeline: str, source: str, offset: int) -> None:
    """Set the offset of the log's next entry; those before it were never in this log."""
    mine = (logs.c.pipeline == pipeline, logs.c.source == source)
    connection.execute(sa.update(logs).where(*mine).values(next_offset=offset))
