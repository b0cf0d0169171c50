"""The transactions of operators. Each is a part of one that commits only under the lease's epoch."""

from __future__ import annotations

import json
import time
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state.generations import LOGGED, Generations
from conduit_dagster.state.offsets import EVERYTHING, set_offsets
from conduit_dagster.state.schema import collections, consumers, logs, offsets, sources, steps


def put_offset(connection: sa.Connection, pipeline: str, consumer: str, source: str, upto: int) -> None:
    """The consumer has handled the source up to here, wherever it stood; below 0: nothing of it."""
    if upto >= 0:
        set_offsets(connection, pipeline, consumer, source, {EVERYTHING: upto}, time.time_ns())
        return
    mine = (offsets.c.pipeline == pipeline, offsets.c.consumer == consumer, offsets.c.source == source)
    connection.execute(sa.delete(offsets).where(*mine))


def put_offsets(connection: sa.Connection, pipeline: str, source: str, upto: int) -> None:
    """As :func:`put_offset`, for every consumer."""
    known = sa.select(consumers.c.consumer).where(consumers.c.pipeline == pipeline)
    for consumer in list(connection.execute(known).scalars()):
        put_offset(connection, pipeline, consumer, source, upto)


def move_source(connection: sa.Connection, pipeline: str, source: str, position: Any, records: int | None) -> None:
    """Where a source stands from now on; ``records`` None: offsets count on."""
    values: dict[str, Any] = {"position": json.dumps(position)}
    if records is not None:
        values["records"] = records
    connection.execute(sa.update(sources).where(*_source(pipeline, source)).values(**values))


def renew_source(connection: sa.Connection, pipeline: str, source: str) -> int:
    """Gives a source a new generation, so that old names meet no new ones."""
    mine = _source(pipeline, source)
    unit = json.loads(connection.execute(sa.select(sources.c.unit).where(*mine)).scalar_one())
    unit.pop(LOGGED, None)
    generation = Generations(connection, pipeline).new(source, json.dumps(unit, sort_keys=True))
    connection.execute(sa.update(sources).where(*mine).values(generation=generation))
    return generation


def _source(pipeline: str, source: str) -> tuple[sa.ColumnElement[bool], ...]:
    return sources.c.pipeline == pipeline, sources.c.source == source


def drop_planned(connection: sa.Connection, pipeline: str) -> None:
    """Steps that were planned and never prepared: a prepared one is never taken back."""
    planned = (steps.c.pipeline == pipeline, steps.c.state == "planned")
    connection.execute(sa.update(steps).where(*planned).values(state="void"))


def forget_collections(connection: sa.Connection, pipeline: str, source: str, first: int) -> None:
    """How far a collection's copy was is not known once its last record is to come again."""
    mine = (collections.c.pipeline == pipeline, collections.c.source == source)
    connection.execute(sa.delete(collections).where(*mine, collections.c.offset >= first))


def begin_log_at(connection: sa.Connection, pipeline: str, source: str, offset: int) -> None:
    """The log's next entry has this offset; those before it never were in this log."""
    mine = (logs.c.pipeline == pipeline, logs.c.source == source)
    connection.execute(sa.update(logs).where(*mine).values(next_offset=offset))
