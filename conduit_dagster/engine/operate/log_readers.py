"""Pipelines that read this one's logs: their offsets, and ``offsets drop`` for a reader that will not return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.state.database import reading
from conduit_dagster.state.delivery_store import EVERYTHING
from conduit_dagster.state.lease import Lease, LeaseHeldByCommand, Transactions, acquire
from conduit_dagster.state.log_store import LogStore
from conduit_dagster.state.readers import ReadingSource, drop, readers_of

Facts = dict[str, Any]


def readers(database: sa.Engine, pipeline: str, source: str | None = None) -> list[ReadingSource]:
    """Return the readers of all its logs, or of the log of ``source``."""
    with reading(database) as connection:
        return readers_of(connection, pipeline, source)


def reader_facts(database: sa.Engine, pipeline: str, ends: Mapping[str, tuple[int, int]]) -> list[Facts]:
    """Return a row per reader, like those of consumers. ``ends``: the last known offset per source, as second item."""
    return [
        {
            "id": reader.name,
            "kind": "reader",
            "delivered": None,
            "step": None,
            "sources": [_in_source(reader, ends)],
            "open": None,
            "error": None,
        }
        for reader in readers(database, pipeline)
    ]


def _in_source(reader: ReadingSource, ends: Mapping[str, tuple[int, int]]) -> Facts:
    offset, (_, last) = reader.offset - 1, ends.get(reader.of[1], (-1, -1))
    return {"id": reader.of[1], "offset": None if offset < 0 else offset, "behind": max(0, last - offset)}


def reader_offsets(database: sa.Engine, pipeline: str, name: str) -> list[Facts]:
    """Return a reader's offset in the layout of a consumer's: readers have no offsets per namespace."""
    return [
        {"source": reader.of[1], "namespace": EVERYTHING, "offset": reader.offset - 1, "at_ns": None}
        for reader in readers(database, pipeline)
        if reader.name == name and reader.offset
    ]


def drop_reader(
    database: sa.Engine, pipeline: str, name: str, by: str, lease_seconds: float, dry_run: bool = False
) -> Facts:
    """Drop a reader: the log no longer waits for it, until its pipeline runs again.

    Raises ``FatalError`` (``usage.*``), ``TransientError`` (``lease.held`` if the reader's pipeline runs).
    """
    if not (known := {reader.name: reader for reader in readers(database, pipeline)}):
        message = f"no other pipeline reads a log of {pipeline}"
        raise refused("usage.unknown_reader", message, f"conduit-dagster offsets list {pipeline} shows who reads it")
    reader = known[chosen("reader", name, known, pipeline)]
    if not dry_run:
        reader = _dropped(database, reader, by, lease_seconds)
    with reading(database) as connection:
        end = LogStore(pipeline).state(connection, reader.of[1]).next_offset
    facts = {"pipeline": pipeline, "reader": reader.name, "source": reader.of[1], "offset": reader.offset - 1}
    return {**facts, "unread": max(0, end - reader.offset)}


def _dropped(database: sa.Engine, reader: ReadingSource, by: str, lease_seconds: float) -> ReadingSource:
    lease = _lease(database, reader, lease_seconds)

    def work(connection: sa.Connection) -> ReadingSource:
        # its offset now that no other process can move it
        now = next((one for one in readers_of(connection, *reader.of) if one.name == reader.name), reader)
        drop(connection, now, by)
        return now

    try:
        return Transactions(database, lease).run(work)
    finally:
        lease.release()


def _lease(database: sa.Engine, reader: ReadingSource, lease_seconds: float) -> Lease:
    try:
        return acquire(database, reader.pipeline, lease_seconds, by_command=True)
    except ConduitError as error:
        if error.code == "lease.held" and not isinstance(error, LeaseHeldByCommand):
            error.fix = f"stop {reader.pipeline} first; one that runs on needs its place in the log"
        raise
