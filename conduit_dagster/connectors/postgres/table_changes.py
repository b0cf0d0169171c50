"""Table-level changes within a delivery: truncates, and creation of tables that may lack some staged columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import psycopg
from psycopg import errors, sql

from conduit_dagster import storage
from conduit_dagster.connectors.postgres.catalog import Table
from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.encode import MOST_COLUMNS
from conduit_dagster.connectors.postgres.new_columns import declared
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.sqlstates import BulkError, RowError, is_about_table, is_data, state_name
from conduit_dagster.connectors.postgres.staged_rows import LineGroup, Missing
from conduit_dagster.connectors.postgres.table_plan import CopyBatch, Slice
from conduit_dagster.record import Nack
from conduit_dagster.sdk import NACKED_TOGETHER, Refusal, Rejected

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
    tables = [name for name in batch.emptied if not (may_be_missing and _is_missing(connection, name))]
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
        # a single statement, so that references among these tables are checked at its end
        deletes = [
            sql.SQL("{} AS (DELETE FROM {})").format(sql.Identifier(f"t{number}"), name.quoted)
            for number, name in enumerate(tables)
        ]
        connection.execute(sql.SQL("WITH {} SELECT").format(sql.SQL(", ").join(deletes)))


def _is_missing(connection: Connection, name: TableName) -> bool:
    return value_of(connection, "SELECT to_regclass(%s)", (name.quoted.as_string(connection),)) is None


Placed = tuple[LineGroup, Slice]
_NULL = rb"\N"


def narrowed_lines(
    slices: Sequence[Placed], tables: Mapping[TableName, Table | None], url: str, ignores: bool
) -> list[Placed]:
    """Return the lines without the columns that their tables lack; changed lines are written to a new file at ``url``.

    Raises ``Rejected`` for records with values for such columns, unless ``ignores`` (``unmapped: ignore``).
    """
    lacks = {group: _lacks(group, tables.get(group.table)) for group, _ in slices}
    if not any(lacks.values()):
        return list(slices)
    found, refused, offset = list[Placed](), list[Refusal](), 0
    with storage.NewFile(url) as file:
        for group, one in slices:
            if not lacks[group]:
                found.append((group, one))
                continue
            narrower, size = _Narrower(group, lacks[group], ignores), 0
            for place, line in enumerate(_lines(one), one.place):
                if (made := narrower.line(line)) is None:
                    refused.append(Refusal(place, narrower.nack))
                else:
                    file.write(made)
                    size += len(made)
            found.append((narrower.group, Slice(url, offset, size, one.records, one.place)))
            offset += size
        file.finish()
    if refused:
        raise Rejected(*refused[0], more=refused[1:NACKED_TOGETHER])
    return found


def _lacks(group: LineGroup, table: Table | None) -> frozenset[str]:
    return frozenset() if table is None else frozenset(group.columns) - table.columns.keys()


def _lines(one: Slice) -> Iterator[bytes]:
    with storage.open_read(one.url) as file:
        file.seek(one.offset)
        for _ in range(one.records):
            yield file.readline()


class _Narrower:
    """Lines of one group, without some of its columns."""

    def __init__(self, group: LineGroup, lacks: frozenset[str], ignores: bool) -> None:
        self._first = 1 if group.merge and not group.mark else 0
        self._end = self._first + len(group.columns)
        self._kept = [place for place, name in enumerate(group.columns) if name not in lacks]
        self._gone = [self._first + place for place, name in enumerate(group.columns) if name in lacks]
        self._ignores = ignores
        self._is_possible = bool(self._kept) and not lacks.intersection(group.key)
        columns = tuple(group.columns[place] for place in self._kept)
        mark = self._mark(group.mark.encode()).decode() if group.mark else ""
        self.group = msgspec.structs.replace(group, columns=columns, mark=mark)
        names = ", ".join(name for name in group.columns if name in lacks)
        self.nack = Nack("postgres.unmapped", f"the table {group.table} has no column for one of {names}")

    def line(self, line: bytes) -> bytes | None:
        """Return the line without the columns; None if it has values for them."""
        cells = line[:-1].split(b"\t")
        has_values = not self._ignores and any(cells[place] != _NULL for place in self._gone)
        if has_values or not self._is_possible:
            return None
        kept = [cells[self._first + place] for place in self._kept]
        return b"\t".join([*map(self._mark, cells[: self._first]), *kept, *cells[self._end :]]) + b"\n"

    def _mark(self, cell: bytes) -> bytes:
        """Return the mark of a change with the bits of the columns that are left."""
        bits = int(cell[1:], 16)
        return cell[:1] + b"%x" % sum(1 << bit for bit, place in enumerate(self._kept) if bits >> place & 1)
