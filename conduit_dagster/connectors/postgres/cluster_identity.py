"""Which database cluster a connection leads to: places in the WAL mean something in one cluster only."""

from __future__ import annotations

from conduit_dagster.connectors.postgres.connection import Connection

UNKNOWN = "unknown"
"""Identifier of a server that does not tell it to everyone."""
_CONTROL = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE')"
_IDENTITY = "SELECT system_identifier::text FROM pg_control_system()"


class ClusterIdentity:
    """The system identifier of a connection's cluster, asked once per connection."""

    def __init__(self) -> None:
        self._known: tuple[Connection, str] | None = None

    def of(self, connection: Connection) -> str:
        """Return the identifier, or ``UNKNOWN``. Raises ``psycopg.Error``."""
        # a connection stays with its server, and every step looks
        if self._known is None or self._known[0] is not connection:
            self._known = connection, _identity(connection)
        return self._known[1]


def is_other(server: str, known: str) -> bool:
    """Return whether a server is certainly not the one that a position knows."""
    return UNKNOWN not in (server, known) and known not in ("", server)


def _identity(connection: Connection) -> str:
    row = connection.execute(_CONTROL).fetchone()
    if row is None or not row[0]:
        return UNKNOWN
    row = connection.execute(_IDENTITY).fetchone()
    return UNKNOWN if row is None else str(row[0])
