"""Finding out about a table with one short connection, from a task as from the driver."""

from __future__ import annotations

import psycopg

from conduit_dagster.connectors.postgres.catalog import TABLES, Table, read_table
from conduit_dagster.connectors.postgres.errors import Verdicts
from conduit_dagster.connectors.postgres.names import TableName
from conduit_dagster.connectors.postgres.session import connect
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings
from conduit_dagster.connectors.postgres.url import Server


class Lookup:
    """Tables of one database, remembered by the process for a minute."""

    def __init__(self, settings: PostgresDestinationSettings, server: Server, verdicts: Verdicts, name: str) -> None:
        self._settings = settings
        self._server = server
        self._verdicts = verdicts
        self._name = name

    def get(self, name: TableName, fresh: bool = False) -> Table:
        """The table. Raises ``FatalError`` where it is missing and not to be created."""
        found = TABLES.get(f"{self._server.user}@{self._server.place}", name, lambda: self._read(name), fresh)
        if found is not None:
            return found
        if self._settings.create_table == "never":
            raise self._verdicts.missing(str(name))
        return Table(name, {}, exists=False)

    def _read(self, name: TableName) -> Table | None:
        connection = connect(self._settings, self._verdicts, self._name)
        try:
            return read_table(connection, name)
        except psycopg.Error as error:
            raise self._verdicts.verdict(error) from None
        finally:
            connection.close()
