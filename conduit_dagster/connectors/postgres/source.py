"""The ``postgres`` source: rows of tables, then all of their changes, exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conduit_dagster.connectors.postgres.changes import collection_of
from conduit_dagster.connectors.postgres.polled_tables import PolledTables
from conduit_dagster.connectors.postgres.replicated_tables import ReplicatedTables
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_position import PostgresPosition, parse_position
from conduit_dagster.connectors.postgres.source_reader import SplitReader
from conduit_dagster.connectors.postgres.source_session import SourceSession
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.connectors.postgres.source_tables import OWN_TABLES
from conduit_dagster.record import Mode
from conduit_dagster.sdk import (
    Block,
    ConnectorContext,
    Dataset,
    Leftover,
    Limit,
    Position,
    ReadOptions,
    ResumeState,
    Source,
    Split,
)


class PostgresSource(Source):
    """Source of rows as ``snapshot`` records, in key order, then of changes, in commit order.

    The stream of a slot can be read again from the last ack on: the server discards confirmed changes, and only
    positions that are durable in the state store are confirmed. Rows are copied under one snapshot that all tasks
    share; an interrupted copy continues under another one, and changes already contained in a copied row are left out
    of the stream.

    Not guaranteed: the limit of a step's records, because a transaction is never split, except by a nack. With
    ``cdcMode: long_polling`` see :class:`PolledTables`: no deletes, and only the last of several updates between two
    polls.
    """

    name = "postgres"
    Settings = PostgresSourceSettings
    settings: PostgresSourceSettings
    gives_json = True
    sets_metadata = True

    def __init__(self, settings: PostgresSourceSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._session = SourceSession(settings, context)
        self._follower = PolledTables(self._session) if settings.is_polled else ReplicatedTables(self._session)
        self.lag_unit = self._follower.lag_unit  # pyright: ignore[reportAttributeAccessIssue]  # rows, or bytes of WAL
        self._generation = 0

    @property
    def unit(self) -> dict[str, Any]:
        """Database and slot, not the host: it changes in a failover, and positions detect another cluster."""
        known = {"plugin": self.name, "database": self._session.server.database}
        if self.settings.is_polled:
            return {**known, "polled": self.settings.polling_column or "key"}
        return {**known, "slot": self.settings.slot}

    @property
    def owned(self) -> str | None:
        """The slot, if the source uses one."""
        return self._follower.owned

    @property
    def dataset(self) -> Dataset | None:
        """The table, if the source reads just one."""
        named = self.settings.named_tables or ()
        host, _, database = self._session.server.place.rpartition("/")
        return Dataset(f"postgres://{host}", f"{database}.{named[0]}", is_table=True) if len(named) == 1 else None

    def reads_table(self, place: str, schema: str, name: str) -> bool:
        """Return whether changes of a table of ``place`` (``host:port/database``) are read. Without a name: those of a
        table into which a destination with this ``schema`` writes the records of its collection."""
        if place != self._session.server.place or self.settings.snapshot_mode == "initial_only":
            return False
        named = self.settings.named_tables
        if not name:
            read = {self.settings.db_schema} if named is None else {table.schema for table in named}
            return not read <= {"public"} - {schema}
        if named is None:
            return schema == self.settings.db_schema and name not in OWN_TABLES
        return TableName(schema, name) in named

    def initial(self) -> Position:
        """Return the position before the first read."""
        return PostgresPosition().to_json()

    def place(self, position: Position) -> Any:
        """Return the LSN and the last copied key of each table."""
        return parse_position(position).place

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the rows or changes of a split."""
        session = self._session
        reader = SplitReader(self.settings, session.errors, session.application, self.context.labels)
        return reader.blocks(split, options)

    def resume(self, state: ResumeState) -> None:
        """Note that a run begins: only a run creates a missing publication or slot."""
        self._follower.begin_run()

    # -- on the driver ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the prerequisites of a run: privileges, server settings, tables with keys, a usable slot. Creates
        nothing."""
        self._follower.check()

    def horizon(self) -> Any:
        """Return the current end of the data."""
        return self._follower.horizon()

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position after the next rows to copy, else after the available changes."""
        return self._follower.latest(parse_position(start), limit, horizon).to_json()

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return splits of the tables for all tasks, or the range of the stream for one task."""
        return self._follower.split(parse_position(start), parse_position(end), n)

    def gives_up(self, start: Position, end: Position) -> bool:
        """Return whether the range copies rows under a snapshot that is gone; it is then planned again."""
        return self._follower.gives_up(parse_position(start), parse_position(end))

    def verify(self, start: Position, end: Position) -> None:
        """Raise ``FatalError`` if the server no longer has the changes of a range."""
        self._follower.verify(parse_position(start), parse_position(end))

    def ack(self, upto: Position, generation: int) -> None:
        """Confirm a durable position, so that the server can discard WAL. Ignores acks of older generations."""
        if generation >= self._generation:
            self._generation = generation
            self._follower.ack(parse_position(upto))

    def close(self) -> None:
        """Confirm the last ack, and close the connections."""
        try:
            self._follower.close()
        finally:
            self._session.close()
            self._generation = 0

    def leftovers(self, position: Position) -> Sequence[Leftover]:
        """Return the slot, and the publication if this source created it; nothing without ``logrepl.autoCleanup``."""
        # without an LSN it has never used the slot, which may be another program's
        return self._follower.leftovers() if parse_position(position).lsn else ()

    def remove_leftovers(self, position: Position) -> None:
        """Drop both. Raises ``TransientError`` (``postgres.slot_active``) while another session reads the slot."""
        if parse_position(position).lsn:
            self._follower.remove_leftovers()

    @classmethod
    def left_by(cls, unit: Mapping[str, Any], position: Position) -> str:
        """Name the slot of a source that followed changes."""
        used = unit.get("slot") and parse_position(position).lsn
        return f"replication slot {unit['slot']} of database {unit.get('database')}" if used else ""

    # -- lag and statistics -------------------------------------------------------------------------------------

    def lag(self, position: Position) -> int | None:
        """Return the bytes of WAL after a position, or with polling the number of rows; None before the first run."""
        return self._follower.lag(parse_position(position))

    def lag_seconds(self, position: Position) -> float | None:
        """Return for how many seconds the oldest change after a position may have waited; 0 if there is none."""
        return self._follower.lag_seconds(parse_position(position))

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return the number of tables copied, and of tables being copied."""
        known = parse_position(position)
        copied = sum(map(known.is_whole, known.copied))
        return {"tables_copied": copied, "tables_begun": len(known.copied) - copied} if known.copied else {}

    def collection_modes(self, position: Position) -> Mapping[str, Mode]:
        """Return ``copy`` for tables being copied and ``complete`` for copied ones."""
        known = parse_position(position)
        return {collection_of(table): "complete" if known.is_whole(table) else "copy" for table in known.copied}
