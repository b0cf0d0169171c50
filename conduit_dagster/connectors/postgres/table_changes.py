"""Table-level changes within a delivery: truncates, creation of tables, and refusal of rows that a policy hides."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

import psycopg
from psycopg import errors, sql

from conduit_dagster.connectors.postgres.connection import Connection, exists, value_of
from conduit_dagster.connectors.postgres.encode import MOST_COLUMNS
from conduit_dagster.connectors.postgres.seen_rows import declared
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.sqlstates import BulkError, RowError, is_about_table, is_data, state_name
from conduit_dagster.connectors.postgres.staged_rows import Missing
from conduit_dagster.connectors.postgres.table_plan import CopyBatch

_NOT_TRUNCATED: Final = (errors.FeatureNotSupported, errors.InsufficientPrivilege, errors.ObjectInUse)
"""Another table references this one; the TRUNCATE privilege is missing; a deferred trigger of this transaction is
pending."""


def create_table(connection: Connection, name: TableName, found: list[Missing]) -> None:
    """Create a table that is still missing, inside the transaction that fills it."""
    connection.execute(_statement(name, found))


def _statement(name: TableName, found: list[Missing]) -> sql.Composed:
    # fields beyond the limit get no column, and their records are refused
    columns = list(dict.fromkeys(column for one in found for column in one.types))[:MOST_COLUMNS]
    types = {column: declared(one.types.get(column) for one in found) for column in columns}
    # safe as SQL: the types come from a fixed list
    items: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind))  # pyright: ignore[reportArgumentType]
        for column, kind in types.items()
    ]
    key = next((one.key for one in found if one.key), ())
    if key and set(key) <= types.keys():
        items.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(name.quoted, sql.SQL(", ").join(items))


def empty_tables(connection: Connection, batch: CopyBatch, may_be_missing: bool) -> None:
    """Empty the tables of a batch of truncates, all at once. ``may_be_missing``: skip tables that don't exist.

    Raises ``RowError`` if other rows reference rows of the table; ``BulkError`` if one of several tables can't be
    emptied: sending the records one by one finds which.
    """
    tables = [name for name in batch.emptied if not may_be_missing or exists(connection, name)]
    if not tables:
        return
    try:
        _empty(connection, tables)
    except psycopg.Error as error:
        if len(tables) > 1 and (is_data(error) or is_about_table(error)):
            names = ", ".join(map(str, tables))
            raise BulkError(f"{state_name(error.sqlstate or '')}: {names} can't be emptied together") from error
        if is_data(error):
            raise RowError(batch.slices[0].place, error) from error
        raise


def _empty(connection: Connection, tables: list[TableName]) -> None:
    try:
        with connection.transaction():
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(name.quoted for name in tables)))
    except _NOT_TRUNCATED:
        refuse_hidden_rows(connection, tables, {"r", "d"})
        # a single statement, so that references among these tables are checked at its end
        deletes = [
            sql.SQL("{} AS (DELETE FROM {})").format(sql.Identifier(f"t{number}"), name.quoted)
            for number, name in enumerate(tables)
        ]
        connection.execute(sql.SQL("WITH {} SELECT").format(sql.SQL(", ").join(deletes)))


Command = Literal["r", "w", "d"]
"""What a policy is for, as in ``pg_policy``: reads, updates, deletes."""

_HIDES: Final = """
    WITH own AS (
        SELECT * FROM pg_policy p WHERE p.polrelid = to_regclass(%s) AND EXISTS (
            SELECT FROM unnest(p.polroles) AS role (id) WHERE id = 0 OR pg_has_role(id, 'USAGE')))
    SELECT row_security_active(%s) AND EXISTS (
        SELECT FROM unnest(%s::text[]) AS command (name)
        WHERE EXISTS (SELECT FROM own WHERE polcmd::text IN ('*', name) AND NOT polpermissive)
            OR NOT EXISTS (SELECT FROM own WHERE polcmd::text IN ('*', name) AND polpermissive
                           AND pg_get_expr(polqual, polrelid) = 'true'))
"""


def refuse_hidden_rows(connection: Connection, tables: Sequence[TableName], commands: Collection[Command]) -> None:
    """Have the server refuse the following statements of the transaction on a table of which a policy may hide rows.

    The change of a hidden row would do nothing, and succeed.
    It takes each policy for one that may, but those that take every row (``USING (true)``).
    """
    for table in tables:
        name = table.quoted.as_string(connection)
        if value_of(connection, _HIDES, (name, name, sorted(commands))):
            connection.execute("SET LOCAL row_security = off")
