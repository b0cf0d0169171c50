"""Polling of tables, for users without the REPLICATION privilege: the driver's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.copied_rows import CopyOperation
from conduit_dagster.connectors.postgres.copy_snapshot import OpenTransactions, count_some, last_row
from conduit_dagster.connectors.postgres.settings import TableName, typed_name
from conduit_dagster.connectors.postgres.source_position import PostgresPosition, Region
from conduit_dagster.connectors.postgres.source_session import SourceSession
from conduit_dagster.connectors.postgres.source_tables import KeyColumn, key_of, order_column
from conduit_dagster.connectors.postgres.table_copies import TableCopies, order_facts
from conduit_dagster.connectors.postgres.wal_history import ClusterIdentity, is_other
from conduit_dagster.sdk import Leftover, Limit, Split

_NOW = "SELECT extract(epoch FROM statement_timestamp()), pg_is_in_recovery()"

_COUNTED = 100_000
"""Maximum number of rows counted per table, because they are counted again in every step."""


class _Look(NamedTuple):
    """Rows found by a poll, with the transactions open at that time, which may still add rows before the last one."""

    bounds: dict[str, list[str]]
    """The last row of each table."""
    open: OpenTransactions
    at: float
    """The server's time, in seconds since 1970."""


class PolledTables:
    """Follower that reads the rows after the last one read, in the order of the key or of a column that only grows.

    Rows are read up to the last one found, once all transactions open at that time have ended: later transactions add
    rows after it. This holds where the database generates the values (a sequence without a cache, ``now()``); a value
    made by a client, or a clock that is set back, may hide a row.
    """

    lag_unit = "records"
    owned = None

    def __init__(self, session: SourceSession) -> None:
        self._session = session
        self._settings = session.settings
        self._errors = session.errors
        self._identity = ClusterIdentity()
        self._copies = _TablePolls(session.settings, session.errors, f"{session.application}:copy")
        self._forget()

    def _forget(self) -> None:
        """Reset the state of a run."""
        self._is_run, self._is_ready, self._has_read = False, False, False
        self._awaited: _Look | None = None
        self._read: _Look | None = None
        self._empty: tuple[Any, float] = None, 0.0

    def begin_run(self) -> None:
        """Note that a run begins, and release the snapshot under which rows were read again for recovery."""
        self._is_run = True
        self._copies.close()

    def check(self) -> None:
        """Check the prerequisites of a run: privileges, tables with a key and the column to poll. Creates nothing."""
        self._session.ask(self._check)

    def _check(self, connection: Connection) -> None:
        tables = self._session.tables(connection)
        self._session.require_readable(connection, tables)
        self._copies.begin(connection, tables, PostgresPosition())
        self._time(connection)

    def _time(self, connection: Connection) -> float:
        """Return the server's time. Raises ``FatalError`` for a standby, which does not know all open transactions."""
        row = connection.execute(_NOW).fetchone()
        assert row is not None
        if row[1]:
            raise self._errors.standby()
        return float(row[0])

    def horizon(self) -> Any:
        """Return an empty horizon: a run that drains its sources polls once."""
        return {}

    # -- planning -----------------------------------------------------------------------------------------------

    def latest(self, start: PostgresPosition, limit: Limit, horizon: Any) -> PostgresPosition:
        """Return the position after the next rows; ``start`` if no row can be read yet."""
        return self._session.ask(lambda connection: self._latest(connection, start, limit, horizon is not None))

    def _latest(self, connection: Connection, start: PostgresPosition, limit: Limit, is_last: bool) -> PostgresPosition:
        position = self._ready(connection, start)
        if position.followed != start.followed:
            # the start of a source without a copy must be stored before anything is read from there
            return position
        further = self._further(position, limit)
        if further != position or self._copies.is_reading or (is_last and self._has_read):
            return further
        look = self._awaited or self._look(connection, position)
        if look is None:
            self._has_read = True
            return self._copies.with_empty(position, {})
        if not self._is_over(connection, look, is_last):
            self._awaited = look
            return start
        self._awaited, self._read, self._has_read = None, look, True
        return self._further(position, limit)

    def _further(self, position: PostgresPosition, limit: Limit) -> PostgresPosition:
        if self._read is None:
            return position
        further = self._copies.upto(self._read.bounds, position, limit)
        # this is the last step of a poll
        return further.as_of(self._read.at) if self._copies.are_read(self._read.bounds, further) else further

    def _is_over(self, connection: Connection, look: _Look, waits: bool) -> bool:
        if not self._is_run:
            return True
        if waits:
            look.open.wait(connection, self._settings, self._errors)
            return True
        return look.open.are_over(connection)

    def _look(self, connection: Connection, position: PostgresPosition) -> _Look | None:
        """Poll for rows after a position; return None if there are none."""
        at = self._time(connection)
        bounds = self._copies.ends(connection, position)
        if not bounds:
            self._empty = position.place, at
        # must be queried after the rows, so that transactions that began in between are waited for as well
        return _Look(bounds, OpenTransactions.that_may_write(connection), at) if bounds else None

    def _ready(self, connection: Connection, start: PostgresPosition) -> PostgresPosition:
        """Find the tables, once in a run. Return the position with the server; without a copy, at the end of each
        table."""
        if self._is_ready and start.server:
            return start
        server = self._require_same(connection, start)
        tables = self._session.tables(connection)
        self._copies.begin(connection, tables, start)
        position = msgspec.structs.replace(start, server=server)
        new = [str(table) for table in tables if str(table) not in start.copied and str(table) not in start.followed]
        if self._settings.snapshot_mode == "initial" or not new or not self._is_run:
            self._is_ready = True
            return position
        look = self._look(connection, position)
        if look is not None:
            look.open.wait(connection, self._settings, self._errors)
        ends = {table: end for table, end in (look.bounds if look else {}).items() if table in new}
        position = self._copies.at_ends(connection, position, ends)
        self._is_ready = True
        return position.with_followed(new)

    def _require_same(self, connection: Connection, position: PostgresPosition) -> str:
        server = self._identity.of(connection)
        if is_other(server, position.server):
            raise self._errors.other_server()
        return server

    # -- ranges -------------------------------------------------------------------------------------------------

    def split(self, start: PostgresPosition, end: PostgresPosition, n: int) -> list[Split]:
        """Return splits of the tables for all tasks."""
        return self._session.translated(lambda: self._copies.split(start, end, n))

    def gives_up(self, start: PostgresPosition, end: PostgresPosition) -> bool:
        """Return whether the range reads rows under a snapshot that is gone; it is then planned again."""
        return self._copies.gives_up(start, end)

    def verify(self, start: PostgresPosition, end: PostgresPosition) -> None:
        """Raise ``FatalError`` if this is another server; nothing else can be checked about a polled range."""
        self._session.ask(lambda connection: self._require_same(connection, end))

    def ack(self, upto: PostgresPosition) -> None:
        """Release the snapshot of a poll once all of its rows are delivered."""
        if self._read is None or self._copies.are_read(self._read.bounds, upto):
            self._copies.close()

    def close(self) -> None:
        """Close the connection that holds the snapshot."""
        self._copies.close()
        self._forget()

    def leftovers(self) -> Sequence[Leftover]:
        """Return nothing: polling creates nothing on the server."""
        return ()

    def remove_leftovers(self) -> None:
        """Remove nothing."""

    # -- lag and statistics -------------------------------------------------------------------------------------

    def lag(self, position: PostgresPosition) -> int | None:
        """Return the number of rows after a position, at most 100,000 per table; None before the first run."""
        return self._behind(position, _COUNTED)[0] if position.server else None

    def lag_seconds(self, position: PostgresPosition) -> float | None:
        """Return the seconds since no row was after the position; 0 if there is none now.

        If this process has not polled, counts from the last poll that was read to its end.
        """
        (behind, now), (place, empty_at) = self._behind(position, 1), self._empty
        since = max(position.at_ms / 1000, empty_at if place == position.place else 0.0)
        return 0.0 if not behind else max(0.0, now - since) if since else None

    def _behind(self, position: PostgresPosition, most: int) -> tuple[int, float]:
        def ask(connection: Connection) -> tuple[int, float]:
            now, tables = self._time(connection), self._session.tables(connection)
            return self._copies.count_behind(connection, tables, position, most), now

        return self._session.ask(ask)


_WHOLE_NUMBERS = (["smallint"], ["integer"], ["bigint"])


class _TablePolls(TableCopies):
    """Copies without an end: each poll reads the rows after the last one, up to a bound, under its own snapshot."""

    def begin(self, connection: Connection, tables: Sequence[TableName], position: PostgresPosition) -> bool:
        """Note the tables. Raises ``FatalError`` for a table without a key or without the polling column."""
        self._tables = list(tables)
        self._require_keys(connection, tables)
        for table in tables:
            self._order(connection, table)
        self._require_order(connection, position)
        return False

    @property
    def is_reading(self) -> bool:
        """Whether a poll is still being read: its snapshot is held until its rows are delivered."""
        return self._snapshot is not None

    def _order(self, connection: Connection, table: TableName) -> list[KeyColumn]:
        """Return the polling column, then the key, which distinguishes rows of the same time."""
        key, name = key_of(connection, table), self._settings.polling_column
        if not name:
            if [column.type for column in key] not in _WHOLE_NUMBERS:
                message = f"the key of {table} is not a single integer, so new rows may come before those already read"
                raise self._errors.fatal(message, "postgres.no_polling_column", "name a column with polling.column")
            return key
        column = order_column(connection, table, name)
        if column is None:
            message = f"{table} has no column {name} that is NOT NULL, not generated, and no date or rounded time"
            fix = f"ALTER TABLE {table.typed} ALTER COLUMN {typed_name(name)} SET NOT NULL"
            fix += "; or name another one with polling.column"
            raise self._errors.fatal(message, "postgres.no_polling_column", fix)
        return [column, *(one for one in key if one.name != name)]

    def _operation(self, table: str, start: PostgresPosition) -> CopyOperation:
        if table not in start.followed:
            return "snapshot"
        return "update" if self._settings.polling_column else "create"

    def at_ends(
        self, connection: Connection, position: PostgresPosition, ends: Mapping[str, list[str]]
    ) -> PostgresPosition:
        """Return the position with each table marked as read up to a row. Raises ``psycopg.Error``."""
        for table in self._tables:
            if (end := ends.get(str(table))) is not None:
                position = position.with_region(str(table), Region(end))
                position = position.with_order(
                    str(table), order_facts(connection, self._ordered(connection, table), end)
                )
        return position

    def ends(self, connection: Connection, position: PostgresPosition) -> dict[str, list[str]]:
        """Return the last row of each table with rows after a position, as text. Raises ``psycopg.Error``."""
        found: dict[str, list[str]] = {}
        self._require_order(connection, position)
        for table in self._tables:
            keyed = self._ordered(connection, table)
            if (last := last_row(connection, keyed, position.copied_upto(str(table)))) is not None:
                found[str(table)] = last
        return found

    def upto(self, bounds: Mapping[str, list[str]], position: PostgresPosition, limit: Limit) -> PostgresPosition:
        """Return the position after the next rows, up to a bound per table; ``position`` if there are none."""
        left = limit.records
        for table in self._tables:
            name, after = str(table), position.copied_upto(str(table))
            if name not in bounds:
                continue
            if after == bounds[name]:
                position = position.with_followed([name])
                continue
            snapshot = self._held()
            if snapshot.is_of_standby:
                raise self._errors.standby()
            keyed = self._ordered(snapshot.connection, table)
            rows = min(left, max(1, limit.bytes // self._width(snapshot, keyed, after)))
            cut = snapshot.next_cut(keyed, after, rows, bounds[name])
            position = position.with_region(name, Region(cut.upto, snapshot.name))
            position = position.with_order(name, order_facts(snapshot.connection, keyed, cut.upto))
            left -= cut.rows
            if cut.upto != bounds[name]:
                break
            # the poll of this table ends here, so that no range mixes rows of the initial copy with later ones
            position = position.with_followed([name])
            if left <= 0:
                break
        return self.with_empty(position, bounds)

    def with_empty(self, position: PostgresPosition, bounds: Mapping[str, list[str]]) -> PostgresPosition:
        """Return the position with the initial copy of tables without further rows marked as complete."""
        return position.with_followed(str(table) for table in self._tables if str(table) not in bounds)

    def are_read(self, bounds: Mapping[str, list[str]], position: PostgresPosition) -> bool:
        """Return whether a position has reached all bounds."""
        return all(position.copied_upto(table) == bound for table, bound in bounds.items())

    def count_behind(
        self, connection: Connection, tables: Sequence[TableName], position: PostgresPosition, most: int
    ) -> int:
        """Return the number of rows after a position, at most ``most`` per table. Raises ``psycopg.Error``."""
        keyed = [self._ordered(connection, table) for table in tables]
        return sum(count_some(connection, one, position.copied_upto(str(one.name)), most) for one in keyed)
