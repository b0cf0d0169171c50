"""Catalog queries for the tables of a source: names, columns and keys; and what a publication sends of them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from psycopg import sql

from conduit_dagster.connectors.postgres.claims_table import NAME as DELIVERIES
from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.settings import STATE_TABLES, TableName

OWN_TABLES = STATE_TABLES | {DELIVERIES}
"""Tables that deliveries and steps write to: reading them would make changes to read."""
_ALL = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
      AND NOT c.relname = ANY(%s)
    ORDER BY c.relname
"""
# includes the collation, which determines the order; with NULL instead of -1, character(3) would become "character",
# which truncates
_COLLATED = """
    CASE WHEN l.oid IS NULL THEN '' ELSE ' COLLATE ' || quote_ident(ln.nspname) || '.' || quote_ident(l.collname) END
"""
_SQL_TYPE = f"format_type(a.atttypid, -1) || {_COLLATED}"
# enums, arrays, ranges and rows have operators for any type of theirs, but not for a domain over it
_BELOW = """
    WITH RECURSIVE b AS (
        SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod UNION ALL
        SELECT u.oid, u.typtype, u.typbasetype, u.typtypmod FROM b JOIN pg_type u ON u.oid = b.typbasetype
        WHERE b.typtype = 'd')
"""
_BASE = f"({_BELOW} SELECT oid FROM b WHERE typtype <> 'd')"
_MODIFIER = f"greatest(a.atttypmod, ({_BELOW} SELECT max(typtypmod) FROM b))"
_BASE_SQL_TYPE = f"CASE WHEN t.typtype = 'd' THEN format_type({_BASE}, -1) || {_COLLATED} ELSE '' END"
_COLLATION = """
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
"""
# key columns in index order
_KEY = f"""
    SELECT a.attname, {_SQL_TYPE}, {_BASE_SQL_TYPE}
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
    SELECT a.attname, {_SQL_TYPE}, {_BASE_SQL_TYPE}
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid {_COLLATION}
    WHERE a.attrelid = %s::regclass AND a.attname = %s AND a.attnum > 0 AND a.attnotnull AND a.attgenerated = ''
      AND {_BASE} <> 'date'::regtype
      AND NOT ({_BASE} IN ('timestamp'::regtype, 'timestamptz'::regtype) AND {_MODIFIER} BETWEEN 0 AND 5)
"""
# without generated columns, which are not in the stream of changes either
_COLUMNS = """
    SELECT a.attname, a.atttypid::int8 FROM pg_attribute a
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
_COLUMNS_BY_OID = """
    SELECT a.attname, a.atttypid::int8 FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_OID = "SELECT %s::regclass::oid::int8"
NO_LABEL: Final = "none"
# a label is only a name: renamed, it may be that of another value
_LABELS = f"""
    SELECT k.name || ' = ' || coalesce(e.oid::text, '{NO_LABEL}')
    FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS k (name, label, place)
    JOIN pg_attribute a ON a.attrelid = %s::regclass AND a.attname = k.name
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type o ON o.oid = {_BASE} AND o.typtype = 'e'
    LEFT JOIN pg_enum e ON e.enumtypid = o.oid AND e.enumlabel = k.label
    ORDER BY k.place
"""
_KIND = """
    SELECT CASE WHEN c.relkind NOT IN ('r', 'p') OR c.relnamespace = 'pg_catalog'::regnamespace THEN 'other'
                WHEN c.relpersistence <> 'p' THEN 'not logged'
                WHEN c.relispartition THEN 'partition' ELSE 'table' END
    FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
_ROOTS = "SELECT relid::oid::int8 FROM pg_partition_ancestors(%s) WHERE relid <> %s::regclass"


TableKind = Literal["table", "partition", "not logged", "other", "missing"]
"""``not logged``: an unlogged or temporary table, whose changes are not in the WAL; ``other``: a view, for example."""


_WHOLE_NUMBERS: Final = frozenset({"smallint", "integer", "bigint"})
_VARYING: Final = "character varying"


class KeyColumn(NamedTuple):
    """A column of a table's key."""

    name: str
    type: str
    """SQL type, with the collation that orders it."""
    base: str = ""
    """The same of the type below a domain; empty: ``type`` is not a domain."""

    @property
    def compared_as(self) -> str:
        """The SQL type in which values are compared."""
        return self.base or self.type

    @property
    def compared(self) -> sql.Composable:
        """The column in comparisons, as SQL."""
        name = sql.Identifier(self.name)
        return sql.SQL("{}::{}").format(name, _type(self.base)) if self.base else name

    @property
    def order(self) -> str:
        """The type, or another one with the same order and the same text of each value: that of a wider integer, or of
        a text without a limit, is the same."""
        if self.type in _WHOLE_NUMBERS:
            return "integer"
        return self.type.replace(_VARYING, "text", 1) if self.type.startswith(_VARYING) else self.type

    def has_type(self, shown: str) -> bool:
        """Return whether this is the column's SQL type, whatever its collation is."""
        return self.type == shown or self.type.startswith(f"{shown} COLLATE ")


def all_tables(connection: Connection, schema: str) -> list[TableName]:
    """Return the tables of a schema but :data:`OWN_TABLES`; partitioned tables without their partitions."""
    return [TableName(*row) for row in connection.execute(_ALL, (schema, sorted(OWN_TABLES)))]


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


def columns_by_oid(connection: Connection, oid: int) -> list[tuple[str, int]]:
    """Return the columns of a table by OID, even if it was renamed; none if it was dropped."""
    rows = connection.execute(_COLUMNS_BY_OID, (oid,))
    return [(name, int(kind)) for name, kind in rows]


def names_then(sent: Iterable[tuple[str, int]], live: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Return by columns that a table has now the names that they had in a change. Columns are renamed in place, and
    added at the end: those of one type that are gone are the first ones of that type that are new."""
    told, known = [*sent], [*live]
    names, names_now = {name for name, _ in told}, {name for name, _ in known}
    found = {name: name for name in names & names_now}
    for kind in {kind for _, kind in told}:
        gone = [name for name, of in told if of == kind and name not in names_now]
        new = [name for name, of in known if of == kind and name not in names]
        if len(gone) <= len(new):
            found |= zip(new, gone, strict=False)
    return found


def shape_of(columns: Iterable[str]) -> str:
    """Return the digest of a table's columns, each given as name and type (OID)."""
    return sha256("\n".join(columns).encode()).hexdigest()[:16]


def order_column(connection: Connection, table: TableName, name: str) -> KeyColumn | None:
    """Return a column for polling; None if it is missing, nullable, generated, a date or a rounded time.

    With a rounded time, a row may appear after later keys of the same rounded time were read.
    """
    row = connection.execute(_ORDER_COLUMN, (quoted(table), name)).fetchone()
    return None if row is None else KeyColumn(*row)


def oid_of(connection: Connection, table: TableName) -> str:
    """Return the OID of a table, which differs for another table of the same name."""
    return str(value_of(connection, _OID, (quoted(table),)))


def labels_of(connection: Connection, table: TableName, names: list[str], row: list[str]) -> list[str]:
    """Return which labels of enums the given columns of a row hold, as ``column = OID``; ``NO_LABEL`` for one that
    its enum does not have. Empty without such columns."""
    return [str(fact) for (fact,) in connection.execute(_LABELS, (names, row, quoted(table)))]


def quoted(table: TableName) -> str:
    """Return a table's name as SQL text."""
    return table.quoted.as_string(None)


def key_range(key: list[KeyColumn], after: list[str] | None, upto: list[str] | None) -> sql.Composable:
    """Return the condition for rows after one key, up to another; None: from the first row, or to the last."""
    columns = sql.SQL(", ").join(column.compared for column in key)
    bounds = [
        sql.SQL("({}) {} ({})").format(columns, sign, literals(bound, [column.compared_as for column in key]))
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
        SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate)
        OR c.relreplident = 'i' AND NOT EXISTS (
            SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident))
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
