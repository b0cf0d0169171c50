"""Catalog queries for what a publication sends of its tables: columns and rows. A copy takes the same ones."""

from __future__ import annotations

from typing import NamedTuple

from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_tables import quoted, shape_of

_PUBLISHED = """
    SELECT p.schemaname, p.tablename, array_agg(a.attname ORDER BY a.attnum),
           array_agg(a.atttypid::int8 ORDER BY a.attnum), {row_filter}
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    JOIN pg_attribute a ON a.attrelid = c.oid
      AND a.attnum > 0 AND NOT a.attisdropped AND {is_sent}
    WHERE p.pubname = %s GROUP BY 1, 2, 5
"""
_LISTED, _NOT_GENERATED = "a.attname = ANY(p.attnames)", "a.attgenerated = ''"
_LISTS_COLUMNS, _LISTS_GENERATED = 150_000, 180_000
"""``server_version_num`` from which publications expose their columns and row filters, and from which they send listed
generated columns."""
_IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass"
_GENERATED_KEYS = """
    SELECT DISTINCT n.nspname, c.relname FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) AND a.attgenerated <> ''
    JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE i.indisprimary OR i.indisreplident
"""


_NO_IDENTITY = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND (c.relreplident = 'n' OR c.relreplident = 'd' AND EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate))
      AND c.relnamespace <> 'pg_catalog'::regnamespace
"""


class PublishedTable(NamedTuple):
    """What changes of a table consist of."""

    columns: list[tuple[str, int]]
    """Name and type (OID) of each column, in the order of the table."""
    row_filter: str
    """SQL condition for the rows that are sent; empty: all."""


def published_tables(connection: Connection, publication: str) -> dict[TableName, PublishedTable]:
    """Return the tables of a publication; none if it does not exist. Raises ``psycopg.Error``."""
    version = connection.info.server_version
    conditions = [_LISTED] * (version >= _LISTS_COLUMNS) + [_NOT_GENERATED] * (version < _LISTS_GENERATED)
    row_filter = "coalesce(p.rowfilter, '')" if version >= _LISTS_COLUMNS else "''"
    query = _PUBLISHED.format(is_sent=" AND ".join(conditions), row_filter=row_filter)
    return {
        TableName(schema, name): PublishedTable([*zip(names, types, strict=True)], condition)
        for schema, name, names, types, condition in connection.execute(query.encode(), (publication,))
    }


def published_shapes(connection: Connection, publication: str) -> dict[str, str]:
    """Return the digests of the columns of published tables, by ``schema.table``."""
    found = published_tables(connection, publication)
    return {str(table): shape_of(f"{name} {oid}" for name, oid in one.columns) for table, one in found.items()}


def is_partitioned(connection: Connection, table: TableName) -> bool:
    """Return whether a table has partitions, and no rows of its own."""
    return bool(value_of(connection, _IS_PARTITIONED, (quoted(table),)))


def rows_of(connection: Connection, table: TableName, row_filter: str) -> str:
    """Return the rows of a table as SQL for ``FROM``: with those of its partitions, but not of children by
    ``INHERITS``, whose changes are sent as those of tables of their own."""
    rows = quoted(table) if is_partitioned(connection, table) else f"ONLY {quoted(table)}"
    return f"(SELECT * FROM {rows} WHERE {row_filter})" if row_filter else rows


def tables_with_generated_keys(connection: Connection) -> set[TableName]:
    """Return the tables of which a generated column is part of the primary key or the replica identity."""
    return {TableName(*row) for row in connection.execute(_GENERATED_KEYS)}


def tables_without_identity(connection: Connection) -> set[TableName]:
    """Return the tables with a primary key, perhaps, but without a replica identity."""
    return {TableName(*row) for row in connection.execute(_NO_IDENTITY)}
