"""The ``postgres`` source: the rows of tables, then every change of them, exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from conduit_dagster.connectors.postgres.changes import collection_of
from conduit_dagster.connectors.postgres.polled_tables import PolledTables
from conduit_dagster.connectors.postgres.replicated_tables import ReplicatedTables
from conduit_dagster.connectors.postgres.source_position import PostgresPosition, parse_position
from conduit_dagster.connectors.postgres.source_reader import SplitReader
from conduit_dagster.connectors.postgres.source_session import SourceSession
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.connectors.postgres.table_follower import TableFollower
from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID, Mode
from conduit_dagster.sdk import (
    Block,
    ConnectorContext,
    Dataset,
    Limit,
    Position,
    ReadOptions,
    ResumeState,
    Source,
    Split,
)


class PostgresSource(Source):
    """Rows of tables as ``snapshot`` records, in the order of their keys; then changes, in the order of their commits.

    The stream of a slot can be read again up to the last ack: the server forgets what was confirmed, and only what is
    durable in the state store is. Rows are copied under one snapshot that all tasks see; a copy that was interrupted
    goes on under another one, and changes that a copied row shows already are left out of the stream.
    Not guaranteed: the limit of a step's records; a transaction is never cut, but where a nack cuts it. With
    ``cdcMode: long_polling`` see :class:`PolledTables`: no deletes, and of several updates between two polls the last.
    """

    name = "postgres"
    Settings = PostgresSourceSettings
    gives_json = True
    sets_metadata = True

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._session = SourceSession(settings, context)
        self._settings = self._session.settings
        is_polled = self._settings.is_polled
        self._follower: TableFollower = PolledTables(self._session) if is_polled else ReplicatedTables(self._session)
        self.lag_unit = self._follower.lag_unit  # pyright: ignore[reportAttributeAccessIssue]  # rows, or bytes of WAL
        self._generation = 0

    @property
    def unit(self) -> dict[str, Any]:
        """Database and slot: after a failover the host is another one, and positions tell another cluster apart."""
        known = {"plugin": self.name, "database": self._session.server.database}
        if self._settings.is_polled:
            return {**known, "polled": self._settings.polling_column or "key"}
        return {**known, "slot": self._settings.slot}

    @property
    def owned(self) -> str | None:
        """The slot, if there is one."""
        return self._follower.owned

    @property
    def dataset(self) -> Dataset | None:
        """The table, if it is one."""
        named = self._settings.named_tables or ()
        host, _, database = self._session.server.place.rpartition("/")
        return Dataset(f"postgres://{host}", f"{database}.{named[0]}", is_table=True) if len(named) == 1 else None

    def initial(self) -> Position:
        """Return the position before anything was looked at."""
        return PostgresPosition().to_json()

    def place(self, position: Position) -> Any:
        """Return the place in the WAL, and how far each table was copied."""
        return parse_position(position).place

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the rows or the changes of a split."""
        labels = {SOURCE_CONNECTOR_ID: self.context.full_id, READ_AT: str(self.context.clock.now_ns)}
        session = self._session
        return SplitReader(self._settings, session.errors, session.application, labels).blocks(split, options)

    def resume(self, state: ResumeState) -> None:
        """Note that a run begins: only a run makes what the server lacks."""
        self._follower.begin_run()

    # -- on the driver ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Ask the server for what a run needs: rights, settings, tables with keys, a usable slot. Makes nothing."""
        self._follower.check()

    def horizon(self) -> Any:
        """Return how far there is data now."""
        return self._follower.horizon()

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position after the next rows to copy, else after the changes that are there."""
        return self._follower.latest(parse_position(start), limit, horizon).to_json()

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return parts of tables for all tasks, or the range of the stream for one."""
        return self._follower.split(parse_position(start), parse_position(end), n)

    def gives_up(self, start: Position, end: Position) -> bool:
        """Return whether rows were to be copied under a snapshot that is gone; they are then planned again."""
        return self._follower.gives_up(parse_position(start), parse_position(end))

    def verify(self, start: Position, end: Position) -> None:
        """Raise ``FatalError`` if the server no longer has the changes of a range."""
        self._follower.verify(parse_position(start), parse_position(end))

    def ack(self, upto: Position, generation: int) -> None:
        """Let the server forget what is durable."""
        if generation >= self._generation:
            self._generation = generation
            self._follower.ack(parse_position(upto))

    def close(self) -> None:
        """Confirm what was acked, and close the connections."""
        try:
            self._follower.close()
        finally:
            self._session.close()
            self._generation = 0

    # -- for people ---------------------------------------------------------------------------------------------

    def lag(self, position: Position) -> int | None:
        """Return the bytes of WAL behind a position, or the rows where it polls; None before the first run."""
        return self._follower.lag(parse_position(position))

    def lag_seconds(self, position: Position) -> float | None:
        """Return for how long the oldest change behind a position may have waited; 0 if there is none."""
        return self._follower.lag_seconds(parse_position(position))

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return how many tables are copied, and how many are being copied."""
        known = parse_position(position)
        copied = sum(map(known.is_whole, known.copied))
        return {"tables_copied": copied, "tables_begun": len(known.copied) - copied} if known.copied else {}

    def collection_modes(self, position: Position) -> Mapping[str, Mode]:
        """Return ``copy`` for tables that are being copied, ``complete`` for those that were."""
        known = parse_position(position)
        return {collection_of(table): "complete" if known.is_whole(table) else "copy" for table in known.copied}
