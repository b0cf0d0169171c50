"""Pipelines that read this one's logs: where they stand, and ``offsets drop`` for one that will not come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from conduit_dagster.engine.operate.refused import chosen, refused
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.state.database import reading
from conduit_dagster.state.lease import Lease, Transactions, acquire
from conduit_dagster.state.log_store import LogStore
from conduit_dagster.state.offsets import EVERYTHING
from conduit_dagster.state.readers import Reader, drop, readers_of

Facts = dict[str, Any]


def readers(database: sa.Engine, pipeline: str, source: str | None = None) -> list[Reader]:
    """The readers of all its logs, or of the one of ``source``."""
    with reading(database) as connection:
        return readers_of(connection, pipeline, source)


def reader_facts(database: sa.Engine, pipeline: str, ends: Mapping[str, tuple[int, int]]) -> list[Facts]:
    """A row per reader, like those of consumers. ``ends``: per source something, and the last offset that is known."""
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


def _in_source(reader: Reader, ends: Mapping[str, tuple[int, int]]) -> Facts:
    offset, (_, last) = reader.offset - 1, ends.get(reader.of[1], (-1, -1))
    return {"id": reader.of[1], "offset": None if offset < 0 else offset, "behind": max(0, last - offset)}


def reader_offsets(database: sa.Engine, pipeline: str, name: str) -> list[Facts]:
    """The one offset of a reader, as those of a consumer are shown: it is told of no namespaces."""
    return [
        {"source": reader.of[1], "namespace": EVERYTHING, "offset": reader.offset - 1, "at_ns": None}
        for reader in readers(database, pipeline)
        if reader.name == name and reader.offset
    ]


def drop_reader(
    database: sa.Engine, pipeline: str, name: str, by: str, lease_seconds: float, dry_run: bool = False
) -> Facts:
    """The log waits for this reader no more, until its pipeline runs again.

    Raises ``FatalError`` (``usage.*``), ``TransientError`` (``lease.held`` where the reader's pipeline runs).
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


def _dropped(database: sa.Engine, reader: Reader, by: str, lease_seconds: float) -> Reader:
    lease = _lease(database, reader, lease_seconds)

    def work(connection: sa.Connection) -> Reader:
        # where it stands now that nobody moves it
        now = next((one for one in readers_of(connection, *reader.of) if one.name == reader.name), reader)
        drop(connection, now, by)
        return now

    try:
        return Transactions(database, lease).run(work)
    finally:
        lease.release()


def _lease(database: sa.Engine, reader: Reader, lease_seconds: float) -> Lease:
    try:
        return acquire(database, reader.pipeline, lease_seconds)
    except ConduitError as error:
        if error.code == "lease.held":
            error.fix = f"stop {reader.pipeline} first; one that runs on needs its place in the log"
        raise
