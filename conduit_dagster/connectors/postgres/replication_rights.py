"""Checks of ``doctor`` for a source: privileges, server settings, free slots. Creates nothing."""

from __future__ import annotations

from collections.abc import Sequence

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.settings import DatabaseServer, TableName
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_tables import quoted

_MAY_REPLICATE = "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
_MAY_READ = "SELECT has_table_privilege(%s, 'SELECT')"
_ROOM = """
    SELECT current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots),
           current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_replication)
"""


def check_rights(
    connection: Connection, server: DatabaseServer, tables: Sequence[TableName], errors: SourceErrors
) -> None:
    """Raise ``FatalError`` if a table can't be read, or ``psycopg.Error``."""
    for table in tables:
        if not _is_true(connection, _MAY_READ, quoted(table)):
            message = f"{server.user} may not read {table}"
            raise errors.unfit("postgres.no_privilege", message, f"GRANT SELECT ON {quoted(table)} TO {server.user}")


def check_replication(connection: Connection, server: DatabaseServer, has_slot: bool, errors: SourceErrors) -> None:
    """Raise ``FatalError`` if changes can't be read, or ``psycopg.Error``."""
    if not _is_true(connection, _MAY_REPLICATE):
        fix = f"as a superuser: ALTER ROLE {server.user} REPLICATION"
        message = f"{server.user} may not replicate; cdcMode: long_polling needs no such right, but finds no deletes"
        raise errors.unfit("postgres.no_privilege", message, fix)
    row = connection.execute(_ROOM).fetchone()
    assert row is not None
    for left, setting in zip(row, ("max_replication_slots", "max_wal_senders"), strict=True):
        if left <= 0 and not (has_slot and setting == "max_replication_slots"):
            fix = f"ALTER SYSTEM SET {setting} to a higher number, then restart the server; or drop what nobody reads"
            raise errors.unfit("postgres.no_slot_left", f"{setting} is used up", fix)


def _is_true(connection: Connection, query: str, *values: str) -> bool:
    row = connection.execute(query.encode(), values).fetchone()
    return bool(row and row[0])
