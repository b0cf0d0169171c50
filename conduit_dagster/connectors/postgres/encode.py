"""Encoding of one table's records as lines of COPY text: plain inserts, and changes of rows by key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from conduit_dagster.connectors.postgres.catalog import Column
from conduit_dagster.connectors.postgres.change_marks import is_truncate, unchanged_fields
from conduit_dagster.connectors.postgres.column_mapping import ColumnLayout, document, documents, key_document
from conduit_dagster.connectors.postgres.copy_text import column_cells, copy_lines
from conduit_dagster.connectors.postgres.new_columns import column_type, common
from conduit_dagster.connectors.postgres.new_rows import NewRows, new_rows
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings, TableName
from conduit_dagster.connectors.postgres.sqlstates import CellError
from conduit_dagster.connectors.postgres.staged_rows import Change, LineGroup, Missing, mark_of, old_names
from conduit_dagster.lazy_records import keys_of, operations_of
from conduit_dagster.record import Data, Document, Record

MOST_COLUMNS = 1_600
"""Maximum number of columns of a table."""
_HELPERS = ("order", "operation", "last", "first", "deleted", "is last", "doubtful", "moved")
_RESERVED = frozenset(f"conduit {name}" for name in _HELPERS)
"""Column names reserved for the temporary tables of a merge, which also have the columns of the target table."""
_TRUNCATE_LINE = b"truncate\n"


class Encoded(NamedTuple):
    """Lines of one group, and the places of their records."""

    places: Sequence[int]
    group: LineGroup
    data: bytes

    def lines(self) -> list[bytes]:
        """Return the lines with their line ends, which are escaped inside values."""
        return self.data.splitlines(keepends=True)


class TableEncoder:
    """Encoder of blocks for one table. Raises for the whole block if one record can't become a row."""

    def __init__(self, settings: PostgresDestinationSettings, layout: ColumnLayout) -> None:
        self._settings = settings
        self._layout = layout
        self._keyed = _KeyedRows(settings, layout)
        self._updates = settings.on_conflict != "error"
        self._merged: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._moving: set[tuple[str, ...]] = set()
        self._types: dict[str, str | None] = {}
        self._found_key = settings.key_columns
        self._is_mixed = False

    def encode(self, records: list[Record]) -> list[Encoded]:
        """Return the rows of all records; rows of one group keep their order."""
        if not self._updates and operations_of(records) == {"create"}:
            return self._inserts(records, range(len(records)))
        if not self._is_mixed and (rows := new_rows(records, self._settings, self._layout)):
            return [self._new(rows, range(len(records)))]
        # groups that alternate would need a merge for each block
        self._is_mixed = True
        return [one for places in _between_truncates(records) for one in self._encode(records, places)]

    def _encode(self, records: list[Record], places: Sequence[int]) -> Iterable[Encoded]:
        if is_truncate(records[places[0]]):
            group = LineGroup(self._layout.table.name, (), truncates=True)
            return [Encoded(places, group, _TRUNCATE_LINE * len(places))]
        rows = {place: self._keyed.row(records[place]) for place in places}
        self._found_key = self._found_key or next((row.key for row in rows.values() if row), ())
        if not self._updates and all(row is None or row.change == "c" for row in rows.values()):
            return self._inserts([records[place] for place in places], places)
        return self._mixed(records, rows)

    def renew(self) -> bool:
        """Refresh the table; return whether it changed, so that refused records must be retried."""
        return self._layout.renew()

    def missing(self) -> Missing | None:
        """Return the table if it has to be created, else None. A table that is only truncated need not be."""
        table = self._layout.table
        return Missing(table.name, self._types, self._found_key) if self._types and not table.exists else None

    def _mixed(self, records: list[Record], rows: dict[int, _KeyedRow | None]) -> Iterable[Encoded]:
        for key, run in groupby(rows, lambda place: row.key if (row := rows[place]) else None):
            places = list(run)
            if key is None:
                yield from self._inserts([records[place] for place in places], places)
            else:
                yield self._merge([row for place in places if (row := rows[place])], places, key)

    # -- plain inserts ------------------------------------------------------------------------------------------

    def _inserts(self, records: list[Record], places: Sequence[int]) -> list[Encoded]:
        found = self._layout.gathered(documents(records, self._settings.raw_column))
        keys = keys_of(records)
        if dict in set(map(type, keys)):
            found = list(map(_with_key, found, keys))
            self._note_key(records[0])
        fields = tuple(found[0])
        if set(map(len, found)) == {len(fields)}:
            try:
                return [self._table(found, places, fields)]
            except KeyError:
                pass
        return list(self._by_defaults(found, places))

    def _table(self, found: list[Document], places: Sequence[int], fields: tuple[str, ...]) -> Encoded:
        shape = self._layout.shape(fields)
        # a KeyError means that a document has other fields; those left out by ``unmapped`` would not raise one
        if shape.unmapped and any(one.keys() != found[0].keys() for one in found):
            raise KeyError(shape.unmapped[0])
        columns = [[one[field] for one in found] for field in shape.fields]
        return self._encoded(columns, shape.columns, places)

    def _by_defaults(self, found: list[Document], places: Sequence[int]) -> Iterable[Encoded]:
        """Encode documents with differing fields: a missing field is NULL, unless its column has a default."""
        for one in found:
            if not self._layout.shape(tuple(one)).columns:
                raise CellError("no_fields", "the record has no field that has a column")
        shape = self._layout.shape(tuple(dict.fromkeys(field for one in found for field in one)))
        pairs = list(zip(shape.fields, shape.columns, strict=True))
        optional = [field for field, column in pairs if column.has_default]
        classes: dict[tuple[bool, ...], list[int]] = {}
        for index, one in enumerate(found):
            classes.setdefault(tuple(field in one for field in optional), []).append(index)
        for given, members in classes.items():
            lacks = {field for field, there in zip(optional, given, strict=True) if not there}
            used = [(field, column) for field, column in pairs if field not in lacks]
            columns = [[found[index].get(field) for index in members] for field, _ in used]
            yield self._encoded(columns, [column for _, column in used], [places[index] for index in members])

    def _encoded(self, values: list[list[Any]], columns: Sequence[Column], places: Sequence[int]) -> Encoded:
        if not columns:
            raise CellError("no_fields", "the record has no field that has a column")
        self._check_required(columns)
        self._check_count(columns)
        data = copy_lines([column_cells(*pair) for pair in zip(values, columns, strict=True)])
        self._note_types(columns, values)
        names = tuple(column.name for column in columns)
        return Encoded(places, LineGroup(self._layout.table.name, names), data)

    def _check_required(self, columns: Sequence[Column]) -> None:
        given = {column.name for column in columns}
        for column in self._layout.table.columns.values():
            if column.required and column.name not in given:
                raise CellError(
                    "not_null", f"the column {column.name} does not accept null, and the record has no such field"
                )

    def _check_count(self, columns: Sequence[Column]) -> None:
        """Raise ``CellError`` if the table to create would exceed PostgreSQL's limit of columns."""
        if not self._layout.table.exists and len(self._types.keys() | {one.name for one in columns}) > MOST_COLUMNS:
            raise _too_many(self._layout.table.name, MOST_COLUMNS)

    # -- by key -------------------------------------------------------------------------------------------------

    def _merge(self, rows: list[_KeyedRow], places: Sequence[int], key: tuple[str, ...]) -> Encoded:
        if any(row.old for row in rows):
            # kept for later blocks as well: one COPY can take all lines as long as they have the same cells
            self._moving.add(key)
        old = key if key in self._moving else ()
        names = self._merged_columns(rows, key)
        columns = [self._layout.named(name)._replace(required=False) for name in (*names, *old)]
        self._check_count(columns)
        values = [[row.values.get(name) for row in rows] for name in names]
        values += [[row.old.get(name) for row in rows] for name in old]
        kinds: list[tuple[Change, tuple[str, ...]]] = [(row.change, tuple(row.values)) for row in rows]
        known = {kind: mark_of(kind[0], names, kind[1]) for kind in set(kinds)}
        marks = [known[kind] for kind in kinds]
        data = copy_lines([marks, *(column_cells(*pair) for pair in zip(values, columns, strict=True))])
        self._note_order([row.values for row in rows])
        self._note_types(columns, values)
        return Encoded(places, LineGroup(self._layout.table.name, names, True, key, moves=bool(old)), data)

    def _new(self, rows: NewRows, places: Sequence[int]) -> Encoded:
        # sorted, so that all blocks and tasks agree
        names = tuple(sorted(rows.values))
        self._check_merged(names, rows.key)
        columns = [self._layout.named(name)._replace(required=False) for name in names]
        self._check_count(columns)
        values = [rows.values[name] for name in names]
        data = copy_lines([column_cells(*pair) for pair in zip(values, columns, strict=True)])
        self._found_key = self._found_key or rows.key
        self._note_order([rows.values])
        self._note_types(columns, values)
        mark = mark_of(rows.change, names, names)
        return Encoded(places, LineGroup(self._layout.table.name, names, True, rows.key, mark=mark), data)

    def _check_merged(self, names: tuple[str, ...], key: tuple[str, ...]) -> None:
        if taken := _RESERVED.union(old_names(key)).intersection(names):
            message = f"no row with the column {min(taken)!r} can be applied by its key: see the setting mapping"
            raise CellError("column_name", message)
        if len(names) > (limit := MOST_COLUMNS - len(_RESERVED) - len(key)):
            raise _too_many(self._layout.table.name, limit)

    def _merged_columns(self, rows: list[_KeyedRow], key: tuple[str, ...]) -> tuple[str, ...]:
        """Return all columns seen so far, including omitted ones: one COPY can take all blocks as long as they stay the
        same."""
        known = set(self._merged.get(key, ()))
        found = known.union(*(row.values for row in rows), *(row.lacks for row in rows))
        if len(found) > len(known):
            # sorted, so that all tasks agree whether or not the table exists yet
            names = tuple(sorted(found))
            self._check_merged(names, key)
            self._merged[key] = names
        return self._merged[key]

    # -- for a table that is to be created ----------------------------------------------------------------------

    def _note_key(self, record: Record) -> None:
        if not self._found_key and (key := self._keyed.key_of(record, None)):
            self._found_key = tuple(key)

    def _note_order(self, rows: Iterable[Iterable[str]]) -> None:
        """Keep the columns in order of appearance, so that the created table is easy to read."""
        if not self._layout.table.exists:
            for name in chain.from_iterable(rows):
                self._types.setdefault(name, None)

    def _note_types(self, columns: Sequence[Column], values: list[list[Any]]) -> None:
        if self._layout.table.exists:
            return
        for column, column_values in zip(columns, values, strict=True):
            self._types[column.name] = common((self._types.get(column.name), column_type(column_values)))


def _between_truncates(records: list[Record]) -> list[Sequence[int]]:
    """Return the places of records in runs, each all truncates or free of them."""
    if not any(map(is_truncate, records)):
        return [range(len(records))]
    return [list(run) for _, run in groupby(range(len(records)), lambda place: is_truncate(records[place]))]


def _too_many(table: TableName, limit: int) -> CellError:
    return CellError("too_many_columns", f"the table {table} would get more than {limit:,} columns with this record")


def _with_key(document: Document, key: object) -> Document:
    """Add the key's fields to the document; as in Conduit, they become columns and override equal fields of the
    payload."""
    if not isinstance(key, dict) or key.keys() <= document.keys():
        return document
    return {**document, **key}


class _KeyedRow(NamedTuple):
    """A record as a change of the row with its key."""

    change: Change
    values: Document
    key: tuple[str, ...]
    old: Document
    """Key of the row before the change, by column; empty if the key does not change."""
    lacks: tuple[str, ...]
    """Columns that a partial change omits."""


class _KeyedRows:
    """Converter of the records of one table to changes by key."""

    def __init__(self, settings: PostgresDestinationSettings, layout: ColumnLayout) -> None:
        self._settings = settings
        self._layout = layout
        self._key = settings.key_columns

    def row(self, record: Record) -> _KeyedRow | None:
        """Return the change by key of a record; None for a record that is a plain insert. Raises ``CellError`` for an
        update or delete without a key."""
        operation = record.operation
        after = None if operation == "delete" else document(record.after, self._settings.raw_column)
        key = self.key_of(record, after)
        if key is None:
            if operation in ("create", "snapshot"):
                return None
            wanted = ", ".join(self._key) or "a document in .Key, or the setting key"
            raise CellError("no_key", f"{operation} needs a key: {wanted}")
        names = tuple(key)
        if after is None:
            return _KeyedRow("d", key, names, {}, ())
        values = {**self._layout.by_column(self._layout.gathered([after])[0]), **key}
        if operation != "update":
            is_create = operation == "create" and self._settings.on_conflict != "update"
            return _KeyedRow("c" if is_create else "u", values, names, {}, ())
        return self._updated(record, values, key)

    def key_of(self, record: Record, after: Document | None) -> Document | None:
        """Return the key by column; None if the record has no complete key."""
        named = key_document(record.key)
        if not self._key:
            key = self._layout.by_column(named) if named else None
        else:
            parts = [part for part in (named, after, record.before) if isinstance(part, dict)]
            key = {name: _first(parts, self._layout.field_of(name)) for name in self._key}
        if key is None or None in key.values():
            return None
        for name in key:
            self._layout.named(name)
        return key

    def _updated(self, record: Record, values: Document, key: Document) -> _KeyedRow:
        old = self._old_key(record.before, key)
        changes: tuple[Change, Change] = ("m", "q") if old else ("u", "p")
        lacks = self._left_out(record, values)
        return _KeyedRow(changes[bool(lacks)], values, tuple(key), old, lacks)

    def _old_key(self, before: Data, key: Document) -> Document:
        """Return the previous key of the row, by column; empty if the record has none or it is unchanged."""
        if not isinstance(before, dict):
            return {}
        found = {name: before.get(self._layout.field_of(name)) for name in key}
        old = {name: key[name] if value is None else value for name, value in found.items()}
        return {} if old == key else old

    def _left_out(self, record: Record, values: Document) -> tuple[str, ...]:
        """Return the table's columns that the record omits because they did not change."""
        unchanged = unchanged_fields(record)
        if not unchanged:
            return ()
        renames = self._settings.renames
        columns = {field: renames.get(field, field) for field in unchanged}
        lacks = {field: name for field, name in columns.items() if name not in values}
        placed = tuple(name for field, name in lacks.items() if self._layout.takes(field))
        if len(placed) < len(lacks) and self._settings.unmapped == "json":
            # the JSON object of unmapped fields is replaced as a whole, so an omitted field would be lost
            fix = "add columns for them, or set REPLICA IDENTITY FULL on the source's table"
            message = f"the update left out unchanged values that have no column: {', '.join(lacks)}; {fix}"
            raise CellError("unchanged_unmapped", message)
        return placed


def _first(parts: list[Document], field: str) -> Any:
    return next((part[field] for part in parts if field in part), None)
