"""Row count and preview of a table."""

from __future__ import annotations

from typing import Any, Final

from psycopg import sql

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.settings import TableName

_MOST: Final = 100_000


def count_rows(connection: Connection, table: TableName) -> int | None:
    """Return the number of rows; None above 100,000, which would take long to count."""
    query = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS few")
    row = connection.execute(query.format(table.quoted, _MOST + 1)).fetchone()
    return row[0] if row is not None and row[0] <= _MOST else None


def some_rows(connection: Connection, table: TableName, rows: int) -> list[dict[str, Any]]:
    """Return a few rows by column, in unspecified order."""
    cursor = connection.execute(sql.SQL("SELECT * FROM {} LIMIT {}").format(table.quoted, rows))
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
