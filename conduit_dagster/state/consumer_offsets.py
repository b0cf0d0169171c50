"""Offsets of consumers: per source and namespace, the last offset up to which everything is handled.

The table is the offset log, compacted by construction: one row per consumer and namespace (reference 4, CASES C15).
Every function takes a connection, so that it can be part of a larger transaction of the protocol.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state.database import put
from conduit_dagster.state.steps import LastInNamespace
from conduit_dagster.state.tables import collections, offsets

EVERYTHING = "*"
"""The namespace of a source's overall offset."""
Moves = Mapping[str, Mapping[str, int]]
"""Source to namespace to offset."""
ByConsumer = dict[str, dict[str, int]]
"""Consumer to namespace to offset, for one source."""


def move_offsets(connection: sa.Connection, pipeline: str, consumers: Sequence[str], moves: Moves) -> None:
    """Advance the offsets of each consumer; a lower value never moves an offset back (CASES C1)."""
    rows = [
        row
        for consumer in consumers
        for source, wanted in moves.items()
        for row in _rows(pipeline, consumer, source, wanted, time.time_ns())
    ]
    put(connection, offsets, rows, lambda new: offsets.c.offset < new.offset)


def offsets_of(connection: sa.Connection, pipeline: str, source: str) -> ByConsumer:
    """Return the offsets of every consumer of a source."""
    table = offsets.c
    query = sa.select(table.consumer, table.namespace, table.offset)
    found: ByConsumer = {}
    for row in connection.execute(query.where(table.pipeline == pipeline, table.source == source)):
        found.setdefault(row[0], {})[row[1]] = row[2]
    return found


def set_offsets(
    connection: sa.Connection, pipeline: str, consumer: str, source: str, wanted: Mapping[str, int], at_ns: int
) -> None:
    """Set offsets for an operator: they may go back, and records after them are sent again if the log has them.

    Setting the source's overall offset (``*``) also limits those of its namespaces: moved back, to at most its value;
    moved forward, to at least its value.
    """
    before = offsets_of(connection, pipeline, source).get(consumer, {})
    after = {**_taken_along(before, wanted.get(EVERYTHING)), **wanted}
    put(connection, offsets, _rows(pipeline, consumer, source, after, at_ns))


def _taken_along(before: Mapping[str, int], overall: int | None) -> dict[str, int]:
    if overall is None:
        return {}
    bound = min if overall < before.get(EVERYTHING, -1) else max
    return {namespace: bound(offset, overall) for namespace, offset in before.items() if namespace != EVERYTHING}


def _rows(pipeline: str, consumer: str, source: str, wanted: Mapping[str, int], at_ns: int) -> list[dict[str, Any]]:
    own = {"pipeline": pipeline, "consumer": consumer, "source": source}
    return [{**own, "namespace": namespace, "offset": offset, "at_ns": at_ns} for namespace, offset in wanted.items()]


def move_collections(
    connection: sa.Connection, pipeline: str, seen: Mapping[str, tuple[int, Mapping[str, LastInNamespace]]]
) -> None:
    """Store the state of each collection: in its copy, at the end of the copy, or in sync.

    ``seen``: by source, the offset from which the ordinals count, and the last record of each collection.
    """
    rows = [
        {
            "pipeline": pipeline,
            "source": source,
            "namespace": namespace,
            "mode": last.mode,
            "offset": base + last.ordinal,
            "at_ns": time.time_ns(),
        }
        for source, (base, lasts) in seen.items()
        for namespace, last in lasts.items()
    ]
    put(connection, collections, rows)
