"""Planning of polls: the ends of polled tables, and the share of the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.copied_rows import CopyOperation
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_position import PostgresPosition, Region
from conduit_dagster.connectors.postgres.source_tables import KeyColumn, key_of, order_column
from conduit_dagster.connectors.postgres.table_copies import TableCopies, order_facts
from conduit_dagster.connectors.postgres.table_copy import count_some, last_row
from conduit_dagster.sdk import Limit

_WHOLE_NUMBERS = (["smallint"], ["integer"], ["bigint"])


class TablePolls(TableCopies):
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
                raise self._errors.unfit("postgres.no_polling_column", message, "name a column with polling.column")
            return key
        column = order_column(connection, table, name)
        if column is None:
            message = f"{table} has no column {name} that is NOT NULL, not generated, and no date or rounded time"
            fix = f"ALTER TABLE {table} ALTER COLUMN {name} SET NOT NULL; or name another one with polling.column"
            raise self._errors.unfit("postgres.no_polling_column", message, fix)
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
                position = position.with_order(str(table), order_facts(connection, self._ordered(connection, table)))
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
            rows = min(left, max(1, limit.bytes // snapshot.width(keyed, after)))
            cut = snapshot.next_cut(keyed, after, rows, bounds[name])
            position = position.with_region(name, Region(cut.upto, snapshot.name))
            position = position.with_order(name, order_facts(snapshot.connection, keyed))
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
