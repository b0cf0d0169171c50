"""The driver's connection of a ``postgres`` source, and the state shared by all parts of the driver's side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg

from conduit_dagster.connectors.postgres.connection import Connection, Session, application, value_of
from conduit_dagster.connectors.postgres.publication import SlotOwner
from conduit_dagster.connectors.postgres.row_values import SET_SESSION
from conduit_dagster.connectors.postgres.settings import DatabaseServer, TableName, conninfo, typed_name
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.connectors.postgres.source_tables import all_tables, divided_tables, kind_of, oid_of, quoted
from conduit_dagster.sdk import ConnectorContext

T = TypeVar("T")
_HIDES_ROWS = "SELECT row_security_active(%s)"
_MAY_READ = "SELECT has_table_privilege(%s, 'SELECT')"


class SourceSession:
    """Server, errors and driver connection of one source. The connection is opened on first use."""

    def __init__(self, settings: PostgresSourceSettings, context: ConnectorContext) -> None:
        self.settings = settings
        self.owner = SlotOwner(context)
        self.server = DatabaseServer.of(conninfo(self.settings.url))
        self.errors = SourceErrors(self.server, self.settings.slot)
        self.application = application(context.full_id)
        """Prefix of ``application_name`` on all connections, including those of tasks."""
        self._known: Connection | None = None
        self._session = Session(self.settings, self.errors, f"{self.application}:source")

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Run a function with the connection and return its result. Raises a ``ConduitError``."""
        with self._session.connection() as connection:
            return self.translated(lambda: question(self._prepared(connection)))

    def _prepared(self, connection: Connection) -> Connection:
        """Return the connection with the same text format as in tasks, whatever the database's settings are."""
        if self._known is not connection:
            connection.execute(SET_SESSION)
            self._known = connection
        return connection

    def translated(self, action: Callable[[], T]) -> T:
        """Run an action and return its result. Raises database errors as ``ConduitError``, without secrets."""
        try:
            return action()
        except psycopg.Error as error:
            # "from None": a traceback would show libpq's unredacted text
            raise self.errors.verdict(error) from None

    def tables(self, connection: Connection) -> list[TableName]:
        """Return the tables of the setting ``tables``, or all of the schema. Raises ``FatalError`` if one is
        missing."""
        named = self.settings.named_tables
        if named is not None:
            self._require_fit(connection, named)
            return list(named)
        if not (tables := all_tables(connection, self.settings.db_schema)):
            raise self.errors.no_table(f"there is no table {self.settings.db_schema}.*")
        return tables

    def _require_fit(self, connection: Connection, named: Sequence[TableName]) -> None:
        """Raise ``FatalError`` for a name of the setting ``tables`` that can't be read, or whose rows another has."""
        kinds = {table: kind_of(connection, table) for table in named}
        if missing := [str(table) for table, kind in kinds.items() if kind == "missing"]:
            raise self.errors.no_table(f"there is no table {', '.join(missing)}")
        if others := [str(table) for table, kind in kinds.items() if kind == "other"]:
            raise self.errors.no_table(f"not a table of its own, but a view or the like: {', '.join(others)}")
        unlogged = [str(table) for table, kind in kinds.items() if kind == "not logged"]
        if unlogged and self.settings.published_by:
            raise self.errors.not_logged(unlogged)
        if partitions := [table for table, kind in kinds.items() if kind == "partition"]:
            oids = {oid_of(connection, table): table for table in named}
            for table in partitions:
                if roots := divided_tables(connection, table) & oids.keys():
                    raise self.errors.named_twice(str(table), str(oids[roots.pop()]))

    def require_readable(self, connection: Connection, tables: Sequence[TableName]) -> None:
        """Raise ``FatalError`` if the user may not read a table, or not all of its rows. For ``doctor``: a run finds
        out by itself."""
        reads_rows = self.settings.is_polled or self.settings.snapshot_mode != "never"
        for table in tables:
            if not value_of(connection, _MAY_READ, (quoted(table),)):
                message, user = f"{self.server.user} may not read {table}", typed_name(self.server.user)
                raise self.errors.fatal(message, "postgres.no_privilege", f"GRANT SELECT ON {quoted(table)} TO {user}")
            if reads_rows and value_of(connection, _HIDES_ROWS, (quoted(table),)):
                raise self.errors.hides_rows(f"row-level security may hide rows of {table}")

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
        self._known = None
