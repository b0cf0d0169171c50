"""Initial copy, driver's side: one snapshot for all tasks, the transactions open at its time, cuts of key ranges."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from psycopg import sql

from conduit_dagster.connectors.postgres.connection import APPLICATION, Connection, value_of
from conduit_dagster.connectors.postgres.settings import DatabaseSettings, TableName
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import SnapshotBound
from conduit_dagster.connectors.postgres.source_tables import KeyColumn, key_range

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
                raise errors.outage(message, "postgres.busy", fix)
            time.sleep(_PAUSE)


def _next_id(connection: Connection) -> str:
    return str(value_of(connection, _NEXT))


_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_EXPORT = "SELECT pg_export_snapshot(), pg_current_snapshot()::text, pg_is_in_recovery()"
_UNTIL = """
    SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_insert_lsn() END)::text
"""
# names are qualified with t: else ORDER BY would use the output column of the same name, which is cast to text
_AT = "SELECT {texts} FROM {table} t WHERE {range} ORDER BY {columns} OFFSET {skip} LIMIT 1"
_LAST = "SELECT {texts} FROM {table} t WHERE {range} ORDER BY {backwards} LIMIT 1"
_COUNT_SOME = "SELECT count(*) FROM (SELECT FROM {table} t WHERE {range} LIMIT {most}) x"
_COUNT = "SELECT count(*) FROM {table} t WHERE {range}"
# column by column: of a whole row, the server would read large values (TOAST) from disk to tell their size
_WIDTH = """
    SELECT coalesce(avg({sizes}), 1)::int8 FROM (
        SELECT * FROM {table} t WHERE {range} ORDER BY {columns} LIMIT 200) x
"""


class KeyedTable(NamedTuple):
    """A table with the columns that order its copy: the key, or a list of columns that ends with it."""

    name: TableName
    order: list[KeyColumn]
    rows: str
    """Its rows, as SQL for ``FROM``."""


class Cut(NamedTuple):
    """A cut between key ranges of a table."""

    rows: int
    """Number of rows from the start of the queried range to the cut."""
    upto: list[str] | None
    """Key of the last row before the cut, as text; None: the end of the table."""


class KeyRange(NamedTuple):
    """The rows of a table between two keys."""

    table: KeyedTable
    after: list[str] | None
    """Key before the first row, as text; None: the beginning of the table."""
    upto: list[str] | None
    """Key of the last row; None: the end of the table."""
    rows: int


class CopySnapshot:
    """A transaction that holds one snapshot of the database for as long as a run copies tables.

    It does not survive a restart; ``bound`` distinguishes rows copied under different snapshots.
    """

    def __init__(self, connection: Connection, tables: Sequence[TableName] = ()) -> None:
        """Take the snapshot on a dedicated connection. Raises ``psycopg.Error``."""
        self.connection = connection
        """Dedicated to this transaction: no other statements may run on it."""
        self.name = secrets.token_hex(6)
        connection.execute(_BEGIN)
        if tables:
            # before the snapshot: a table that is rewritten after it (ALTER TABLE) would look empty
            names = sql.SQL(", ").join(table.quoted for table in tables)
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
        exported = connection.execute(_EXPORT).fetchone()
        until = connection.execute(_UNTIL).fetchone()
        assert exported is not None and until is not None
        self.exported = str(exported[0])
        """Id for ``SET TRANSACTION SNAPSHOT`` in tasks."""
        self.bound = SnapshotBound(str(exported[1]), str(until[0]))
        self.is_of_standby = bool(exported[2])
        """Whether a standby took it, which may lack rows that the primary has."""

    def close(self) -> None:
        """End the transaction."""
        self.connection.close()

    def next_cut(self, table: KeyedTable, after: list[str] | None, rows: int, upto: list[str] | None = None) -> Cut:
        """Return the cut ``rows`` rows further on, but at most at ``upto``."""
        found = self._at(table, after, upto, rows - 1)
        return Cut(count_rows(self.connection, table, after, upto), upto) if found is None else Cut(rows, found)

    def width(self, table: KeyedTable, columns: Iterable[str], after: list[str] | None) -> int:
        """Return the approximate size in bytes of these columns in each of the next rows."""
        sizes = [sql.SQL("coalesce(pg_column_size({}), 0)").format(sql.Identifier("x", name)) for name in columns]
        row = self._one(_WIDTH, table, after, sizes=sql.SQL(" + ").join(sizes))
        return max(1, int(str(row[0]))) if row else 1

    def counted(self, table: KeyedTable, after: list[str] | None, upto: list[str] | None) -> KeyRange:
        """Return the rows after one key, up to another."""
        return KeyRange(table, after, upto, count_rows(self.connection, table, after, upto))

    def cuts(self, copied: KeyRange, rows: int) -> list[Cut]:
        """Return the cuts that divide a range into parts of this many rows, the last one at its end."""
        table, after, upto, total = copied
        inner = [Cut(at, self._at(table, after, upto, at - 1)) for at in range(rows, total, rows)]
        return [*inner, Cut(total, upto)]

    def _at(self, table: KeyedTable, after: list[str] | None, upto: list[str] | None, skip: int) -> list[str] | None:
        row = self._one(_AT, table, after, upto, skip=sql.Literal(skip))
        return None if row is None else [str(value) for value in row]

    def _one(
        self,
        text: str,
        table: KeyedTable,
        after: list[str] | None,
        upto: list[str] | None = None,
        **more: sql.Composable,
    ) -> tuple[object, ...] | None:
        return self.connection.execute(_filled(text, table, (after, upto), **more)).fetchone()


def count_rows(connection: Connection, table: KeyedTable, after: list[str] | None, upto: list[str] | None) -> int:
    """Return the number of rows after one key, up to another. Raises ``psycopg.Error``."""
    return int(value_of(connection, _filled(_COUNT, table, (after, upto))))


def count_some(connection: Connection, table: KeyedTable, after: list[str] | None, most: int) -> int:
    """Return the number of rows after a key, at most ``most``. Raises ``psycopg.Error``."""
    return int(value_of(connection, _filled(_COUNT_SOME, table, (after, None), most=sql.Literal(most))))


def last_row(connection: Connection, table: KeyedTable, after: list[str] | None) -> list[str] | None:
    """Return the order columns of the last row after a key, as text; None if there is no row. Raises
    ``psycopg.Error``."""
    row = connection.execute(_filled(_LAST, table, (after, None))).fetchone()
    return None if row is None else [str(value) for value in row]


def _filled(
    text: str, table: KeyedTable, bounds: tuple[list[str] | None, list[str] | None], **more: sql.Composable
) -> sql.Composed:
    names = [sql.Identifier("t", column.name) for column in table.order]
    return sql.SQL(text).format(  # pyright: ignore[reportArgumentType]  # all texts are in this file
        texts=sql.SQL(", ").join(sql.SQL("{}::text").format(name) for name in names),
        columns=sql.SQL(", ").join(names),
        backwards=sql.SQL(", ").join(sql.SQL("{} DESC").format(name) for name in names),
        table=sql.SQL(table.rows),  # pyright: ignore[reportArgumentType]  # as the catalogue quotes it
        range=key_range(table.order, *bounds),
        **more,
    )
