"""The records at fault where a deferred foreign key fails at the end of a delivery's transaction.

Sent in pieces, rows would be refused whose parents come in a later piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.catalog import read_table
from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.regrouped_lines import Placed
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.staged_rows import LineGroup, row_of
from conduit_dagster.connectors.postgres.table_plan import Slice, lines_of
from conduit_dagster.sdk import NACKED_TOGETHER

_CHUNK: Final = 10_000
_FOREIGN_KEY = """
    SELECT n.nspname, r.relname, pn.nspname, p.relname,
        ARRAY(SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY k (number, place)
              JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number ORDER BY place),
        ARRAY(SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY k (number, place)
              JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.number ORDER BY place)
    FROM pg_constraint c
    JOIN pg_class r ON r.oid = coalesce(pg_partition_root(c.conrelid), c.conrelid)
    JOIN pg_namespace n ON n.oid = r.relnamespace
    JOIN pg_class p ON p.oid = coalesce(pg_partition_root(c.confrelid), c.confrelid)
    JOIN pg_namespace pn ON pn.oid = p.relnamespace
    WHERE c.contype = 'f' AND c.conname = %s AND c.conrelid = to_regclass(%s)
"""
# a row that a later record of the delivery replaces or deletes is not at fault
_AT_FAULT = """
    SELECT place FROM unnest({arrays}) AS u ({names})
    WHERE NOT EXISTS (SELECT FROM {parent} t WHERE {is_parent}) AND EXISTS (SELECT FROM {child} t WHERE {is_child})
"""
_Candidate = tuple[int, tuple[str, ...]]
"""A record's place, and the texts of the columns that the query needs."""


class _ForeignKey(NamedTuple):
    """A foreign key; a partitioned table stands for its partitions."""

    child: TableName
    parent: TableName
    columns: tuple[str, ...]
    referenced: tuple[str, ...]


def records_at_fault(connection: Connection, error: psycopg.Error, lines: Sequence[Placed]) -> list[int]:
    """Return the places of the records due to which the foreign key of the error fails, up to a limit, in order.

    All lines must have been written in this transaction. Returns nothing where no record is at fault by its own values,
    as where a trigger changes them.
    """
    key = _foreign_key(connection, error)
    found = set[int]()
    for group in dict.fromkeys(group for group, _ in lines) if key else ():
        slices = [one for other, one in lines if other == group]
        for deletes in (False, True):
            query = _Query.of(connection, key, group, deletes) if key else None
            if query is not None:
                found.update(query.places(connection, _candidates(group, slices, query)))
    return sorted(found)[:NACKED_TOGETHER]


def _foreign_key(connection: Connection, error: psycopg.Error) -> _ForeignKey | None:
    diag = error.diag
    if not (diag.schema_name and diag.table_name and diag.constraint_name):
        return None
    name = TableName(diag.schema_name, diag.table_name).quoted.as_string(connection)
    row = connection.execute(_FOREIGN_KEY, (diag.constraint_name, name)).fetchone()
    if row is None:
        return None
    return _ForeignKey(TableName(*row[:2]), TableName(*row[2:4]), tuple(row[4]), tuple(row[5]))


class _Query(NamedTuple):
    """The query for those of some records that are at fault: rows that refer to no row, or deletes of rows to which
    others refer."""

    text: sql.Composed
    names: tuple[str, ...]
    """Columns of the records' table whose values it needs."""
    deletes: bool

    @staticmethod
    def of(connection: Connection, key: _ForeignKey, group: LineGroup, deletes: bool) -> _Query | None:
        """Return the query for the lines of a group; None if they can't be at fault."""
        own = key.referenced if deletes else key.columns
        if group.table != (key.parent if deletes else key.child) or group.truncates or not {*own} <= {*group.columns}:
            return None
        table = read_table(connection, group.table)
        names = own if deletes else (*own, *group.key)
        if table is None or not {*names} <= table.columns.keys():
            return None
        # safe as SQL: the server's own names of types
        types = [sql.SQL(table.columns[name].type) for name in names]  # pyright: ignore[reportArgumentType]
        values = [sql.SQL("u.{}::{}").format(sql.Identifier(f"c{place}"), kind) for place, kind in enumerate(types)]
        its = key.columns if deletes else names
        text = sql.SQL(_AT_FAULT).format(
            arrays=sql.SQL(", ").join([sql.SQL("%s::bigint[]"), *[sql.SQL("%s::text[]")] * len(names)]),
            names=sql.SQL(", ").join(map(sql.Identifier, ["place", *(f"c{place}" for place in range(len(names)))])),
            parent=key.parent.quoted,
            child=key.child.quoted,
            is_parent=_all_equal(key.referenced, values),
            is_child=_all_equal(its, values),
        )
        return _Query(text, names, deletes)

    def places(self, connection: Connection, candidates: Iterator[_Candidate]) -> Iterator[int]:
        """Yield the places of those that are at fault."""
        while chunk := list(islice(candidates, _CHUNK)):
            columns = zip(*(values for _, values in chunk), strict=True)
            arrays = [[place for place, _ in chunk], *map(list, columns)]
            yield from (row[0] for row in connection.execute(self.text, arrays))


def _all_equal(names: Sequence[str], values: Sequence[sql.Composed]) -> sql.Composed:
    pairs = zip(names, values, strict=False)
    return sql.SQL(" AND ").join(sql.SQL("t.{} = {}").format(sql.Identifier(name), value) for name, value in pairs)


def _candidates(group: LineGroup, slices: Sequence[Slice], query: _Query) -> Iterator[_Candidate]:
    for one, line in lines_of(slices):
        row = row_of(group, line[:-1].decode())
        data = row.key if query.deletes else row.after
        if (row.operation == "delete") is query.deletes and isinstance(data, dict):
            values = [value for name in query.names if isinstance(value := data.get(name), str)]
            if len(values) == len(query.names):
                yield one.place, tuple(values)
