"""The ``postgres`` destination: writes rows exactly once, in one transaction with the delivery's hash."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.catalog import TableLookup, check_columns, check_rights, check_server
from conduit_dagster.connectors.postgres.claims_table import NAME, Claims
from conduit_dagster.connectors.postgres.connection import (
    Connection,
    Session,
    application,
    end_older,
    transaction,
    value_of,
)
from conduit_dagster.connectors.postgres.copy_writer import CopyWriter
from conduit_dagster.connectors.postgres.delivery_transaction import TablePublisher
from conduit_dagster.connectors.postgres.settings import (
    DatabaseServer,
    PostgresDestinationSettings,
    TableName,
    conninfo,
    require_user_table,
    table_name,
)
from conduit_dagster.connectors.postgres.sqlstates import CellError, DatabaseErrors
from conduit_dagster.connectors.postgres.staged_rows import staged_row
from conduit_dagster.expressions import compile_template, reads_key
from conduit_dagster.record import Record
from conduit_dagster.sdk import (
    AlreadyClaimed,
    Claim,
    Claimed,
    ConnectorContext,
    Dataset,
    Delivery,
    Keys,
    StagedDestination,
    Target,
    Writer,
    WriterTask,
)

_MARK = "deliveries"
"""Key of a target: the mark of the table of hashes when the step was prepared."""


class PostgresDestination(StagedDestination):
    """Destination that writes records as rows of one or several tables.

    Tasks encode COPY text (and query the table's columns, at most once a minute); the driver inserts the delivery's
    hash and its rows in one transaction. ``conduit_deliveries`` keeps the hashes of 1,000 steps.

    Not guaranteed: the order of records of different tables within a delivery, unless a truncate lies between them or
    one table references another; and that triggers and check constraints see a row that a later record of the same
    delivery replaces.
    """

    name = "postgres"
    Settings = PostgresDestinationSettings
    settings: PostgresDestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})
    divisible = True
    skips_records = True
    changes_records = False
    takes_payloads = True

    def __init__(self, settings: PostgresDestinationSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        template = compile_template(settings.table)
        self._template: Callable[[Record], Any] = template
        self.reads_keys = Keys.ALL if reads_key(template.names) else Keys.OBJECTS
        self._table = None if template.literal is None else table_name(template.literal, settings.db_schema)
        self._server = DatabaseServer.of(conninfo(settings.url))
        self._verdicts = DatabaseErrors(self._server, str(self._table or ""))
        self._application = application(context.full_id)
        self._session = Session(settings, self._verdicts, self._application)
        self._schema = self._table.schema if self._table else settings.db_schema
        self._claims = Claims(self._schema, context.pipeline, self._verdicts)
        self._publisher = TablePublisher(settings, self._claims)
        self._is_ready = False

    @property
    def address(self) -> str:
        """``host:port/database schema.table``; the template instead of the table if records choose the table."""
        return f"{self._server.place} {self._table or self.settings.table}"

    @property
    def tables_written(self) -> list[tuple[str, str, str]]:
        """Database, schema and name of the tables that it writes to, as far as no record names them; without a name
        where each record's collection does."""
        place, claims = self._server.place, (self._server.place, self._schema, NAME)
        if self._table is not None:
            return [(place, self._table.schema, self._table.name), claims]
        by_collection = self.settings.table == PostgresDestinationSettings.model_fields["table"].default
        return [(place, self.settings.db_schema, ""), claims] if by_collection else [claims]

    @property
    def hashes_at(self) -> str:
        """The schema of ``conduit_deliveries``."""
        return f"schema {self._schema}"

    @property
    def dataset(self) -> Dataset | None:
        """The table, if its name is fixed."""
        if self._table is None:
            return None
        host, _, database = self._server.place.rpartition("/")
        return Dataset(f"postgres://{host}", f"{database}.{self._table}", is_table=True)

    def row_count(self) -> int | None:
        """Return the number of rows of the table; None above 100,000, and if records choose the table."""
        return None if self._table is None else self._looked(count_rows, self._table)

    def preview(self, rows: int) -> Sequence[Mapping[str, Any]]:
        """Return a few rows of the table, in unspecified order; none if records choose the table."""
        return () if self._table is None else self._looked(some_rows, self._table, rows)

    def field_of(self, column: str) -> str | None:
        """Return the field that ``mapping`` assigns to the column, else the field of the same name."""
        if column == self.settings.raw_column:
            return None
        return next((field for field, own in self.settings.renames.items() if own == column), column)

    def _looked(self, query: Callable[..., Any], *arguments: Any) -> Any:
        with self._session.connection() as connection:
            try:
                return query(connection, *arguments)
            except psycopg.Error as error:
                raise self._verdicts.verdict(error) from None

    # -- in tasks -----------------------------------------------------------------------------------------------

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer that stages rows as COPY text."""
        # not of the name by which a fence ends connections: it writes nothing
        session = Session(self.settings, self._verdicts, f"{self._application} lookup")
        return CopyWriter(task, self._table or self._table_of, self.settings, self._lookup(session))

    def _lookup(self, session: Session) -> TableLookup:
        return TableLookup(self.settings, self._server, self._verdicts, session)

    def _table_of(self, record: Record) -> TableName:
        try:
            return require_user_table(table_name(self._template(record), self.settings.db_schema), NAME)
        except ValueError as error:
            raise CellError("table_name", str(error)) from None

    # -- on the driver ------------------------------------------------------------------------------------------

    def staged_row(self, delivery: Delivery, place: int) -> Record:
        """Return the row's columns by name, as text."""
        return staged_row(delivery, place)

    def close(self) -> None:
        """Close the driver's connection."""
        self._session.close()
        self._is_ready = False

    def check(self) -> None:
        """Connect, create ``conduit_deliveries``, and check a table with a fixed name."""
        with self._connected() as connection:
            self._claims.check(connection)
            if self._table is not None:
                self._check_table(connection, self._table)

    def _check_table(self, connection: Connection, name: TableName) -> None:
        try:
            table = self._lookup(self._session).get(name, fresh=True)
        except CellError:
            return  # not an error here: with on-missing-table: nack each record is nacked
        if table.exists:
            check_columns(table, self.settings, self._verdicts)
            check_rights(connection, table, self._verdicts)
            if self.context.strategy == "exactly-once":
                check_server(connection, table, self._verdicts)

    @contextmanager
    def _connected(self) -> Generator[Connection]:
        """Yield the connection, with the table of deliveries there. Raises database errors as those of that table."""
        with self._session.connection() as connection, self._claims.told():
            if not self._is_ready:
                self._claims.create(connection)
                self._is_ready = True
            yield connection

    def fence(self, epoch: int) -> None:
        """Terminate the connections of older owners. New connections carry ``epoch`` in their ``application_name``."""
        self._session.become(epoch)
        with self._session.connection() as connection:
            try:
                end_older(connection, self._application, epoch, self._verdicts)
            except psycopg.Error as error:
                raise self._verdicts.verdict(error) from None

    def target(self, previous: Target | None) -> Target:
        """Return with exactly-once by which mark the table of hashes is known."""
        if self.context.strategy != "exactly-once":
            return super().target(previous)
        with self._connected() as connection:
            return {_MARK: self._mark(connection)}

    def _mark(self, connection: Connection) -> str | None:
        own = self.context.connector
        found = self._claims.mark(connection, own)
        if found is None:
            with transaction(connection, self.settings):
                self._claims.put_mark(connection, own)
            found = self._claims.mark(connection, own)
        return found

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the delivery was published: its hash is stored, and its rows were committed with it.

        Raises ``FatalError`` if a hash could be lost, unless such a delivery is to be sent again.
        """
        with self._connected() as connection, transaction(connection, self.settings):
            is_there = self._claims.state(connection, delivery) == "delivered"
            if not is_there and self.settings.on_deliveries_gone == "fail" and self._is_lost(connection, delivery):
                raise self._claims.gone(delivery.step)
            return is_there

    def retarget(self, delivery: Delivery) -> Target | None:
        """Return the mark of the table as it is now, if it lost hashes and ``on-deliveries-gone`` is ``resend``."""
        with self._connected() as connection:
            return {_MARK: self._mark(connection)} if self._is_lost(connection, delivery) else None

    def _is_lost(self, connection: Connection, delivery: Delivery) -> bool:
        """Return whether the table that had the delivery's hash, if it was stored, has lost its rows."""
        # a step that an older version prepared has no mark
        before = delivery.target.get(_MARK)
        return before is not None and self._claims.mark(connection, self.context.connector) != before

    def claim(self, delivery: Delivery, state: Claim) -> Claimed:
        """Store ``state`` under the hash if it is free. Blocks while an open transaction may insert the same hash."""
        with self._connected() as connection, transaction(connection, self.settings):
            return self._claims.put(connection, delivery, state) or state

    def claim_all(self, deliveries: Sequence[Delivery], state: Claim) -> list[Claimed]:
        """Claim the hashes in one transaction, in order, so that two owners claiming the same hashes never deadlock."""
        with self._connected() as connection, transaction(connection, self.settings):
            return self._claims.put_all(connection, deliveries, state) if deliveries else []

    def publish(self, delivery: Delivery) -> Target:
        """Write hash and rows in one transaction. Does nothing if the hash is already stored as delivered."""
        with self._connected() as connection:
            claimed = self._publisher.publish(connection, delivery)
        if claimed is not None:
            raise AlreadyClaimed(claimed)
        return delivery.target


_MOST: Final = 100_000


def count_rows(connection: Connection, table: TableName) -> int | None:
    """Return the number of rows; None above 100,000, which would take long to count."""
    query = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS few")
    count = int(value_of(connection, query.format(table.quoted, _MOST + 1)))
    return count if count <= _MOST else None


def some_rows(connection: Connection, table: TableName, rows: int) -> list[dict[str, Any]]:
    """Return a few rows by column, in unspecified order."""
    cursor = connection.execute(sql.SQL("SELECT * FROM {} LIMIT {}").format(table.quoted, rows))
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
