"""Catalog queries for the tables of a source: names, columns and keys."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal, NamedTuple

from psycopg import sql

from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.settings import TableName

_ALL = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
    ORDER BY c.relname
"""
# includes the collation, which determines the order; with NULL instead of -1, character(3) would become "character",
# which truncates
_SQL_TYPE = """
    format_type(a.atttypid, -1) || CASE WHEN l.oid IS NULL THEN ''
        ELSE ' COLLATE ' || quote_ident(ln.nspname) || '.' || quote_ident(l.collname) END
"""
_COLLATION = """
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
"""
# key columns in index order
_KEY = f"""
    SELECT a.attname, {_SQL_TYPE}
    FROM pg_index i
    CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    JOIN pg_type t ON t.oid = a.atttypid
    {_COLLATION}
    WHERE i.indrelid = %s::regclass AND (i.indisprimary OR i.indisreplident) AND k.place <= i.indnkeyatts
      AND i.indexrelid = (
          SELECT j.indexrelid FROM pg_index j WHERE j.indrelid = i.indrelid AND (j.indisprimary OR j.indisreplident)
          ORDER BY j.indisreplident DESC LIMIT 1)
    ORDER BY k.place
"""
_ORDER_COLUMN = f"""
    SELECT {_SQL_TYPE} FROM pg_attribute a {_COLLATION}
    WHERE a.attrelid = %s::regclass AND a.attname = %s AND a.attnum > 0 AND a.attnotnull AND a.attgenerated = ''
      AND a.atttypid <> 'date'::regtype
      AND NOT (a.atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype) AND a.atttypmod BETWEEN 0 AND 5)
"""
# without generated columns, which are not in the stream of changes either
_COLUMNS = """
    SELECT a.attname, a.atttypid::int8 FROM pg_attribute a
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
_OID = "SELECT %s::regclass::oid::int8"
_KIND = """
    SELECT CASE WHEN c.relkind NOT IN ('r', 'p') OR c.relnamespace = 'pg_catalog'::regnamespace THEN 'other'
                WHEN c.relpersistence <> 'p' THEN 'not logged'
                WHEN c.relispartition THEN 'partition' ELSE 'table' END
    FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
_ROOTS = "SELECT relid::oid::int8 FROM pg_partition_ancestors(%s) WHERE relid <> %s::regclass"


TableKind = Literal["table", "partition", "not logged", "other", "missing"]
"""``not logged``: an unlogged or temporary table, whose changes are not in the WAL; ``other``: a view, for example."""


class KeyColumn(NamedTuple):
    """A column of a table's key."""

    name: str
    type: str
    """SQL type, with the collation that orders it."""


def all_tables(connection: Connection, schema: str) -> list[TableName]:
    """Return the tables of a schema; partitioned tables without their partitions."""
    return [TableName(*row) for row in connection.execute(_ALL, (schema,))]


def kind_of(connection: Connection, table: TableName) -> TableKind:
    """Return what a name stands for."""
    return value_of(connection, _KIND, (quoted(table),)) or "missing"


def divided_tables(connection: Connection, table: TableName) -> set[str]:
    """Return the OIDs of the tables of which this one is a partition."""
    return {str(oid) for (oid,) in connection.execute(_ROOTS, (quoted(table), quoted(table)))}


def key_of(connection: Connection, table: TableName) -> list[KeyColumn]:
    """Return the columns of the replica identity index, else of the primary key; empty without either."""
    return [KeyColumn(*row) for row in connection.execute(_KEY, (quoted(table),))]


def key_by_oid(connection: Connection, oid: int) -> list[KeyColumn]:
    """Return the key columns of a table by OID, even if it was renamed; empty if it was dropped."""
    # regclass takes a number as the OID itself, without a lookup
    return [KeyColumn(*row) for row in connection.execute(_KEY, (str(oid),))]


def columns_of(connection: Connection, table: TableName) -> list[tuple[str, int]]:
    """Return name and type (OID) of each column that is not generated."""
    return [(name, int(oid)) for name, oid in connection.execute(_COLUMNS, (quoted(table),))]


def shape_of(columns: Iterable[str]) -> str:
    """Return the digest of a table's columns, each given as name and type (OID)."""
    return sha256("\n".join(columns).encode()).hexdigest()[:16]


def order_column(connection: Connection, table: TableName, name: str) -> KeyColumn | None:
    """Return a column for polling; None if it is missing, nullable, generated, a date or a rounded time.

    With a rounded time, a row may appear after later keys of the same rounded time were read.
    """
    kind = value_of(connection, _ORDER_COLUMN, (quoted(table), name))
    return None if kind is None else KeyColumn(name, str(kind))


def oid_of(connection: Connection, table: TableName) -> str:
    """Return the OID of a table, which differs for another table of the same name."""
    return str(value_of(connection, _OID, (quoted(table),)))


def quoted(table: TableName) -> str:
    """Return a table's name as SQL text."""
    return table.quoted.as_string(None)


def key_range(key: list[KeyColumn], after: list[str] | None, upto: list[str] | None) -> sql.Composable:
    """Return the condition for rows after one key, up to another; None: from the first row, or to the last."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in key)
    bounds = [
        sql.SQL("({}) {} ({})").format(columns, sign, literals(bound, [column.type for column in key]))
        for sign, bound in ((sql.SQL(">"), after), (sql.SQL("<="), upto))
        if bound is not None
    ]
    return sql.SQL(" AND ").join(bounds) if bounds else sql.SQL("true")


def literals(key: list[str] | tuple[str, ...], types: list[str]) -> sql.Composed:
    """Return key values as SQL literals with the types of their columns."""
    made = [sql.SQL("{}::{}").format(sql.Literal(value), _type(kind)) for value, kind in zip(key, types, strict=True)]
    return sql.SQL(", ").join(made)


def _type(kind: str) -> sql.SQL:
    return sql.SQL(kind)  # pyright: ignore[reportArgumentType]  # as the catalogue quotes it
