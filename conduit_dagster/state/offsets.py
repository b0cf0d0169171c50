"""Offsets of consumers: per source and namespace, the last one up to which everything is handled.

The table is the offset log, compacted by construction: one row per consumer and namespace (reference 4, CASES C15).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import sqlalchemy as sa

from conduit_dagster.state.schema import collections, offsets
from conduit_dagster.state.steps import Seen

EVERYTHING = "*"
"""The namespace of a source's overall offset."""
Moves = Mapping[str, Mapping[str, int]]
"""Source to namespace to offset."""


def move_offsets(connection: sa.Connection, pipeline: str, consumer: str, moves: Moves) -> None:
    """Moves them on; a lower one never moves one back (CASES C1)."""
    mine = (offsets.c.pipeline == pipeline, offsets.c.consumer == consumer)
    known = {
        (row["source"], row["namespace"]): row["offset"]
        for row in connection.execute(sa.select(offsets).where(*mine)).mappings()
    }
    now = time.time_ns()
    for source, namespaces in moves.items():
        for namespace, offset in namespaces.items():
            key = {"source": source, "namespace": namespace[:256]}
            before = known.get((source, namespace[:256]))
            if before is None:
                values = {"pipeline": pipeline, "consumer": consumer, **key, "offset": offset, "at_ns": now}
                connection.execute(offsets.insert().values(**values))
            elif before < offset:
                where = (*mine, offsets.c.source == source, offsets.c.namespace == key["namespace"])
                connection.execute(sa.update(offsets).where(*where).values(offset=offset, at_ns=now))


def move_collections(
    connection: sa.Connection, pipeline: str, source: str, base: int, seen: Mapping[str, Seen]
) -> None:
    """Where each collection of a source stands: in its copy, at the end of it, or in sync."""
    for namespace, last in seen.items():
        mine = {"pipeline": pipeline, "source": source, "namespace": namespace[:256]}
        values = {"mode": last.mode, "offset": base + last.ordinal, "at_ns": time.time_ns()}
        where = [collections.c[name] == value for name, value in mine.items()]
        if connection.execute(sa.update(collections).where(*where).values(**values)).rowcount == 0:
            connection.execute(collections.insert().values(**mine, **values))
