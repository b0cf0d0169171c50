"""Waiting for the transactions that were open at one point in time."""

from __future__ import annotations

import time

from conduit_dagster.connectors.postgres.connection import APPLICATION, Connection, value_of
from conduit_dagster.connectors.postgres.settings import DatabaseSettings
from conduit_dagster.connectors.postgres.source_errors import SourceErrors

_PAUSE = 0.05
# the next id to be assigned: xmax of a snapshot only follows the last completed id, and later ones may be open
_NEXT = """
    SELECT (s.xmax::text::int8 + age(s.xmax::xid))::text FROM (SELECT pg_snapshot_xmax(pg_current_snapshot()) AS xmax) s
"""
# a transaction gets an id only with its first write, but may hold a sequence value or its start time before that.
# Transactions of other databases, vacuum and readers of any pipeline write nothing here; sessions whose application
# name is hidden from us are included.
_VIRTUAL = """
    SELECT l.virtualxid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'virtualxid' AND l.pid <> pg_backend_pid() AND a.datname = current_database()
      AND a.backend_type IS DISTINCT FROM 'autovacuum worker' AND coalesce(a.application_name, '') !~ %s
"""
_READERS = f"^{APPLICATION}[0-9a-f]+:(copy|task)"
_OPEN = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'virtualxid' AND virtualxid = ANY(%s))"
_OVER = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8"


class OpenTransactions:
    """The transactions that were open when this was created, including prepared ones."""

    def __init__(self, next_id: str, virtual: list[str]) -> None:
        """``virtual``: virtual ids, which transactions without an id have as well; a server never reuses one."""
        self._next_id, self._virtual = next_id, virtual

    @staticmethod
    def with_ids(connection: Connection) -> OpenTransactions:
        """Return the open transactions that have written. Raises ``psycopg.Error``."""
        return OpenTransactions(_next_id(connection), [])

    @staticmethod
    def that_may_write(connection: Connection) -> OpenTransactions:
        """Return all open transactions that may write, with or without an id. Raises ``psycopg.Error``."""
        virtual = [str(row[0]) for row in connection.execute(_VIRTUAL, (_READERS,))]
        return OpenTransactions(_next_id(connection), virtual)

    def are_over(self, connection: Connection) -> bool:
        """Return whether all have ended and new snapshots see their commits. Raises ``psycopg.Error``."""
        if self._virtual:
            if value_of(connection, _OPEN, (self._virtual,)):
                return False
            # a transaction without an id may since have got one and been prepared, which releases its virtual id
            self._next_id, self._virtual = _next_id(connection), []
        return bool(value_of(connection, _OVER, (self._next_id,)))

    def wait(self, connection: Connection, settings: DatabaseSettings, errors: SourceErrors) -> None:
        """Wait until all have ended. Raises ``TransientError`` after ``lock-timeout``."""
        limit = settings.lock_timeout
        deadline = time.monotonic() + limit
        while not self.are_over(connection):
            if limit and time.monotonic() > deadline:
                message = f"transactions that began earlier are still open after {limit:.0f} s"
                fix = "end them: SELECT pid, query, xact_start FROM pg_stat_activity WHERE xact_start IS NOT NULL"
                raise errors.waiting(message, fix)
            time.sleep(_PAUSE)


def _next_id(connection: Connection) -> str:
    return str(value_of(connection, _NEXT))
