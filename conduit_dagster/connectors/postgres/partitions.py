"""Partitions of a table as a source: each has a replica identity of its own, which decides what its changes hold."""

from __future__ import annotations

from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_tables import KeyColumn, quoted

_PARTITIONED = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'p'
"""
# the old row of a change has the columns of the partition's own replica identity
_UNIDENTIFIED = """
    SELECT c.oid::regclass::text FROM pg_partition_tree(%s) p JOIN pg_class c ON c.oid = p.relid
    WHERE p.isleaf AND c.relkind = 'r' AND c.relreplident <> 'f' AND NOT EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = c.oid
            AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate END
            AND %s::text[] <@ ARRAY(
                SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)))
    ORDER BY 1
"""
# a partition with a full identity sends whole rows only where its table has it too
_WITH_OWN_KEY = """
    SELECT c.oid::regclass::text FROM pg_partition_tree(%s) p JOIN pg_class c ON c.oid = p.relid
    WHERE p.isleaf AND c.relreplident <> 'n'
      AND NOT (c.relreplident = 'f' AND (SELECT relreplident = 'f' FROM pg_class WHERE oid = %s::regclass))
      AND (c.relreplident = 'f' OR EXISTS (
          SELECT FROM pg_index i WHERE i.indrelid = c.oid
              AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary AND i.indimmediate END))
    ORDER BY 1
"""
_NOT_LOGGED = """
    SELECT c.oid::regclass::text FROM pg_partition_tree(%s) p JOIN pg_class c ON c.oid = p.relid
    WHERE p.isleaf AND (c.relkind <> 'r' OR c.relpersistence <> 'p') ORDER BY 1
"""
_IS_IN_PART = """
    SELECT EXISTS (SELECT FROM pg_partition_tree(%s) p JOIN pg_class c ON c.oid = p.relid
                   WHERE p.isleaf AND c.relreplident <> 'f')
"""


def partitioned_tables(connection: Connection) -> set[TableName]:
    """Return the tables that have partitions, and no rows of their own."""
    return {TableName(*row) for row in connection.execute(_PARTITIONED)}


def is_sent_in_part(connection: Connection, oid: int) -> bool:
    """Return whether old rows that a table's changes have may lack columns, although its replica identity is full: for
    each partition its own one counts."""
    return bool(value_of(connection, _IS_IN_PART, (str(oid),)))


def partitions_not_logged(connection: Connection, table: TableName) -> list[str]:
    """Return the partitions whose changes are not in the WAL, as SQL: unlogged and foreign tables."""
    return [str(name) for (name,) in connection.execute(_NOT_LOGGED, (quoted(table),))]


def partitions_with_own_key(connection: Connection, table: TableName) -> list[str]:
    """Return the partitions, as SQL, of which PostgreSQL takes updates and deletes, and sends them without a key where
    the table has none."""
    name = quoted(table)
    return [str(name) for (name,) in connection.execute(_WITH_OWN_KEY, (name, name))]


def unidentified_partitions(connection: Connection, table: TableName, key: list[KeyColumn]) -> list[str]:
    """Return the partitions whose replica identity lacks columns of the table's key, as SQL."""
    names = [column.name for column in key]
    return [str(name) for (name,) in connection.execute(_UNIDENTIFIED, (quoted(table), names))]
