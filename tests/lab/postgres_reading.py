"""Reading of a postgres source step by step on a separate database, as the engine does, but without it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import psycopg

from conduit_dagster.connectors.postgres.source import PostgresSource
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, ConnectorContext, Keys, Limit, Position, ReadOptions, ResumeState, Source, Split

from .postgres_tables import drop_slots
from .waiting import wait_until

WHOLE = Limit(10**6, 10**9)
_MOST = 20
"""Maximum number of open sources: each has its own connections."""


class PostgresReading:
    """A database and its sources, with unique names of slot and publication."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self.root = root
        self.name = f"t_{secrets.token_hex(6)}"
        self.sources: list[PostgresSource] = []

    def source(self, pipeline: str = "p", runs: bool = True, **settings: Any) -> PostgresSource:
        """Create a source as a separate process would, for a run or, without ``runs``, for a read-only command."""
        values = {
            "url": self.url, "tables": "*", "logrepl.slotName": self.name, "logrepl.publicationName": self.name,
            **settings,
        }  # fmt: skip
        context = ConnectorContext(pipeline, "in", str(self.root), Clock())
        made = PostgresSource(PostgresSourceSettings.model_validate(values), context)
        if runs:
            made.resume(ResumeState(made.initial(), None, {}))
        self.sources.append(made)
        if len(self.sources) > _MOST:
            _end(self.sources.pop(0))
        return made

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement on a new connection and return its rows. A lock that is never free is an error."""
        with psycopg.connect(self.url, autocommit=True, options="-c lock_timeout=60s") as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def wal(self) -> int:
        """Return the end of the WAL as a number."""
        return int(self.execute("SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')")[0][0])

    def confirmed(self) -> int:
        """Return the confirmed LSN of the slot as a number."""
        query = "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0') FROM pg_replication_slots WHERE slot_name = %s"
        return int(self.execute(query, self.name)[0][0])

    def await_idle(self) -> None:
        """Wait until no session reads the slot: the server ends one a moment after its reader has hung up.

        Until then the slot can be neither confirmed nor dropped.
        """
        query = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
        wait_until(lambda: not self.execute(query, self.name), "the slot has no reader")

    def end_sources(self) -> None:
        """Close all sources, as their processes would: one that was in a copy holds a lock on its table."""
        while self.sources:
            _end(self.sources.pop())

    def close(self) -> None:
        """Close the sources, terminate any reader of the slot, and drop it."""
        self.end_sources()
        drop_slots(self.url, self.name)


def _end(source: PostgresSource) -> None:
    source._follower._copies.close()  # type: ignore[attr-defined]
    source._session.close()


def blocks(source: Source, split: Split, options: ReadOptions | None = None) -> list[Block]:
    """Return the blocks of a split."""
    found = source.read(travelled(split), options or ReadOptions(block_records=7))
    return [block if isinstance(block, Block) else Block.of(block) for block in found]


def records_of(source: Source, start: Position, end: Position, n: int = 2) -> list[Record]:
    """Return the records of a range."""
    splits = source.split(travelled(start), travelled(end), n)
    return [record for split in splits for block in blocks(source, split) for record in block.records]


def drained(
    source: Source, start: Position | None = None, limit: Limit = WHOLE, acks: bool = True
) -> tuple[list[Record], Position]:
    """Read all records from a position on, step by step; return them and the position after them."""
    position = source.initial() if start is None else start
    found: list[Record] = []
    horizon = source.horizon()
    while (further := source.latest(travelled(position), limit, horizon)) != position:
        found += records_of(source, position, further)
        source.verify(travelled(position), travelled(further))
        position = travelled(further)
        if acks:
            source.ack(position, 1)
    return found, position


def travelled(value: Any) -> Any:
    """Return the value after a JSON round trip, as through the state store or to a task."""
    if isinstance(value, Split):
        return Split(travelled(value.start), value.ordinal, value.records, value.bytes, travelled(value.detail))
    return json.loads(json.dumps(value))


def told(record: Record) -> tuple[Any, ...]:
    """Return a record's main fields: operation, collection, key, before, after."""
    return record.operation, record.collection, record.key, record.before, record.after


ALL_KEYS = ReadOptions(Keys.ALL, block_records=7)
