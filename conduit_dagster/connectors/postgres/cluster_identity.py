"""Identity of the database cluster behind a connection: an LSN is only meaningful within one cluster."""

from __future__ import annotations

from conduit_dagster.connectors.postgres.connection import Connection

UNKNOWN = "unknown"
"""Identifier of a server that does not let this user read it."""
_CONTROL = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE')"
_IDENTITY = "SELECT system_identifier::text FROM pg_control_system()"


class ClusterIdentity:
    """System identifier of a connection's cluster, queried once per connection."""

    def __init__(self) -> None:
        self._known: tuple[Connection, str] | None = None

    def of(self, connection: Connection) -> str:
        """Return the identifier, or ``UNKNOWN``. Raises ``psycopg.Error``."""
        # cached, because every step checks it and a connection never changes its server
        if self._known is None or self._known[0] is not connection:
            self._known = connection, _identity(connection)
        return self._known[1]


def is_other(server: str, known: str) -> bool:
    """Return whether a server is certainly another one than that of a position; False if either is unknown."""
    return UNKNOWN not in (server, known) and known not in ("", server)


def _identity(connection: Connection) -> str:
    row = connection.execute(_CONTROL).fetchone()
    if row is None or not row[0]:
        return UNKNOWN
    row = connection.execute(_IDENTITY).fetchone()
    return UNKNOWN if row is None else str(row[0])
