"""Blocks of rows that are probably new: taken column by column, and copied straight into their table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import errors

from conduit_dagster.connectors.postgres.column_mapping import ColumnLayout
from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings, TableName
from conduit_dagster.connectors.postgres.sqlstates import RowError, is_about_table, is_data
from conduit_dagster.connectors.postgres.staged_rows import Change
from conduit_dagster.connectors.postgres.table_plan import CopyBatch
from conduit_dagster.lazy_records import keys_of, operations_of, payloads_of
from conduit_dagster.record import Record


class NewShape(NamedTuple):
    """What rows have in common that can be taken as columns together."""

    change: Change
    fields: frozenset[str]
    named: frozenset[str]
    """Fields of the records' own keys."""
    key: frozenset[str]
    """Key columns."""


class NewRows(NamedTuple):
    """The records of a block as columns: each a whole row with a key, all of one shape."""

    shape: NewShape
    values: dict[str, list[Any]]
    """Values of all rows by column: those of the payload, then of the key, in the order of their fields."""
    key: tuple[str, ...]


def new_rows(records: list[Record], settings: PostgresDestinationSettings, layout: ColumnLayout) -> NewRows | None:
    """Return the columns of a block of snapshots, or of creates that may meet an existing row.

    None for any other block: its records are then taken one by one, with the same result. Records that alone have one
    shape have it together. Raises ``CellError`` for fields without a column.
    """
    change = _change(records, settings)
    documents = _Documents.of(payloads_of(records)) if change else None
    if change is None or documents is None:
        return None
    named = _Documents.of(keys := keys_of(records))
    if named is None and set(map(type, keys)) != {type(None)}:
        return None
    values = documents.by_column(layout)
    key = _key(documents, named, settings, layout)
    if values is None or not key or any(None in one for one in key.values()):
        return None
    shape = NewShape(change, frozenset(documents.fields), frozenset(named.fields if named else ()), frozenset(key))
    return NewRows(shape, {**values, **key}, tuple(key))


def _change(records: list[Record], settings: PostgresDestinationSettings) -> Change | None:
    found: set[Change | None] = {
        _CHANGES.get((settings.on_conflict, operation)) for operation in operations_of(records)
    }
    return found.pop() if len(found) == 1 else None


_CHANGES: Final[dict[tuple[str, str], Change]] = {
    ("error", "snapshot"): "u",
    ("ignore", "snapshot"): "u",
    ("ignore", "create"): "c",
    ("update", "snapshot"): "u",
    ("update", "create"): "u",
}


class _Documents:
    """Documents that all have the same fields, at least one."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.fields = tuple(rows[0])

    @classmethod
    def of(cls, found: Sequence[Any]) -> _Documents | None:
        """Return the documents; None if one is not a document, or has other fields than the first."""
        if set(map(type, found)) != {dict} or not found[0]:
            return None
        fields = found[0].keys()
        return cls(found) if all(one.keys() == fields for one in found) else None

    def values(self, field: str) -> list[Any]:
        return [row[field] for row in self._rows]

    def by_column(self, layout: ColumnLayout) -> dict[str, list[Any]] | None:
        """Return the values by column; None if a field has none."""
        shape = layout.shape(self.fields)
        if shape.unmapped:
            return None
        return {column.name: self.values(field) for column, field in zip(shape.columns, shape.fields, strict=True)}


def _key(
    documents: _Documents, named: _Documents | None, settings: PostgresDestinationSettings, layout: ColumnLayout
) -> dict[str, list[Any]] | None:
    """Return the values of the key's columns; None if no place has them, or if the records' keys have other fields."""
    if not settings.key_columns:
        return named and named.by_column(layout)
    fields = {name: layout.field_of(name) for name in settings.key_columns}
    if named and not set(named.fields) <= set(fields.values()):
        return None
    found: dict[str, list[Any]] = {}
    for name, field in fields.items():
        owner = next((one for one in (named, documents) if one and field in one.fields), None)
        if owner is None:
            return None
        found[layout.named(name).name] = owner.values(field)
    return found


_HAS_INDEX = """
    SELECT EXISTS (
        SELECT FROM pg_index i
        WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indimmediate AND i.indisvalid
            AND i.indpred IS NULL AND i.indexprs IS NULL
            AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM pg_attribute a
                 WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) = %s
            AND NOT EXISTS (SELECT FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhparent
                            WHERE c.oid = i.indrelid AND c.relkind <> 'p'))
"""


class DirectCopy:
    """Copy of new rows straight into their table: a merge through a temporary table takes several times as long.

    A table in which one of the rows was there already gets merges from then on, for as long as this object lives.
    """

    def __init__(self) -> None:
        self._merged: set[TableName] = set()

    def copied(self, connection: Connection, batch: CopyBatch, copy: Callable[[], None]) -> bool:
        """Copy the rows with ``copy``; return whether the table took them all.

        If not, nothing is done: a merge decides about the rows. Only a unique index on the key tells whether a row is
        there already, and none has the rows of children by INHERITS.
        """
        table = batch.group.table
        if not batch.group.mark or table in self._merged or not _has_index(connection, table, batch.group.key):
            return False
        try:
            with connection.transaction():
                copy()
            return True
        except (RowError, psycopg.Error) as error:
            cause = error.cause if isinstance(error, RowError) else error
            if not (is_data(cause) or is_about_table(cause)):
                raise
            if isinstance(cause, errors.UniqueViolation):
                self._merged.add(table)
        return False


def _has_index(connection: Connection, table: TableName, key: Sequence[str]) -> bool:
    name = table.quoted.as_string(connection)
    return bool(value_of(connection, _HAS_INDEX, (name, sorted(key))))
