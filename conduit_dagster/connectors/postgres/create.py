"""Creating tables that are missing, from what was staged for them."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from conduit_dagster.connectors.postgres.inferred import common
from conduit_dagster.connectors.postgres.names import TableName
from conduit_dagster.connectors.postgres.rows import Missing
from conduit_dagster.connectors.postgres.session import Connection


def create_tables(connection: Connection, missing: Iterable[Missing]) -> None:
    """Creates those that are still missing, inside the transaction that fills them."""
    tables: dict[TableName, list[Missing]] = {}
    for one in missing:
        tables.setdefault(one.table, []).append(one)
    for name, found in tables.items():
        connection.execute(_statement(name, found))


def _statement(name: TableName, found: list[Missing]) -> sql.Composed:
    columns = dict.fromkeys(column for one in found for column in one.types)
    types = {column: common(one.types.get(column) for one in found) or "text" for column in columns}
    # the types are our own words, from a fixed list
    items: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind))  # pyright: ignore[reportArgumentType]
        for column, kind in types.items()
    ]
    key = next((one.key for one in found if one.key), ())
    if key and set(key) <= types.keys():
        items.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(name.quoted, sql.SQL(", ").join(items))
