"""Encoding of one table's records as lines of COPY text: plain inserts, and changes of rows by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from conduit_dagster.change_marks import is_truncate
from conduit_dagster.connectors.postgres.catalog import Column
from conduit_dagster.connectors.postgres.column_mapping import ColumnLayout, DocumentShape, documents
from conduit_dagster.connectors.postgres.copy_text import column_cells, copy_lines
from conduit_dagster.connectors.postgres.keyed_rows import KeyedRow, KeyedRows, with_keys
from conduit_dagster.connectors.postgres.new_rows import NewRows, new_rows
from conduit_dagster.connectors.postgres.seen_rows import SeenRows
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings, TableName
from conduit_dagster.connectors.postgres.sqlstates import CellError
from conduit_dagster.connectors.postgres.staged_rows import Change, LineGroup, Missing, mark_of, old_names
from conduit_dagster.lazy_records import keys_of
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
    """Encoder of blocks for one table. Raises for the whole block if one record can't become a row.

    Blocks make no difference: see :class:`SeenRows`.
    """

    def __init__(self, settings: PostgresDestinationSettings, layout: ColumnLayout) -> None:
        self._settings = settings
        self._layout = layout
        self._keyed = KeyedRows(settings, layout)
        self._seen = SeenRows(key=settings.key_columns)
        self._table = layout.table

    def encode(self, records: list[Record]) -> list[Encoded]:
        """Return the rows of all records; rows of one group keep their order. Changes nothing if it raises."""
        if self._layout.table != self._table:
            self._table = self._layout.table
            self._seen.forget_columns()
        before, self._seen = self._seen, self._seen.copy()
        try:
            return list(self._encode(records, range(len(records))))
        except BaseException:
            self._seen = before
            raise

    def renew(self) -> bool:
        """Refresh the table; return whether it changed, so that refused records must be retried."""
        return self._layout.renew()

    def missing(self) -> Missing | None:
        """Return the table if it has to be created, else None. A table that is only truncated need not be."""
        table, seen = self._layout.table, self._seen
        return Missing(table.name, seen.types, seen.key) if seen.types and not table.exists else None

    def _encode(self, records: list[Record], places: Sequence[int]) -> Iterator[Encoded]:
        if self._settings.on_conflict != "error":
            yield from self._copied_or_merged(records, places)
            return
        start = 0
        for inserted, stop in self._seen.divided(records):
            mine = records if stop - start == len(records) else records[start:stop]
            encode = self._inserted if inserted else self._copied_or_merged
            yield from encode(mine, places[start:stop])
            start = stop

    def _copied_or_merged(self, records: list[Record], places: Sequence[int]) -> Iterator[Encoded]:
        """Encode records that may meet existing rows."""
        if self._seen.is_mixed:
            yield from self._merged(records, places)
        elif rows := self._new_rows(records):
            yield self._copied(rows, places)
        else:
            first = next(place for place, one in enumerate(records) if not self._new_rows([one]))
            if first and (rows := self._new_rows(records[:first])):
                yield self._copied(rows, places[:first])
            self._seen.is_mixed = True
            yield from self._merged(records[first:], places[first:])

    # -- new rows -----------------------------------------------------------------------------------------------

    def _new_rows(self, records: list[Record]) -> NewRows | None:
        """Return the columns of the records; None unless they go on with the rows copied so far."""
        rows = new_rows(records, self._settings, self._layout)
        return rows if rows is not None and self._seen.copies(rows.shape) else None

    def _copied(self, rows: NewRows, places: Sequence[int]) -> Encoded:
        # sorted, so that all tasks agree
        names, key = tuple(sorted(rows.values)), self._seen.one_order(rows.key)
        self._check_merged(names, key)
        columns = [self._layout.named(name)._replace(required=False) for name in names]
        self._check_count(columns)
        values = [rows.values[name] for name in names]
        data = copy_lines([column_cells(*pair) for pair in zip(values, columns, strict=True)])
        self._note([rows.values], columns, values, key)
        mark = mark_of(rows.shape.change, names, names)
        return Encoded(places, LineGroup(self._layout.table.name, names, True, key, mark=mark), data)

    # -- by key -------------------------------------------------------------------------------------------------

    def _merged(self, records: list[Record], places: Sequence[int]) -> Iterator[Encoded]:
        for truncates, run in groupby(range(len(records)), lambda place: is_truncate(records[place])):
            mine, own = _taken(list(run), records, places)
            if truncates:
                group = LineGroup(self._layout.table.name, (), truncates=True)
                yield Encoded(own, group, _TRUNCATE_LINE * len(own))
            else:
                yield from self._by_key(mine, own)

    def _by_key(self, records: list[Record], places: Sequence[int]) -> Iterator[Encoded]:
        rows = list(map(self._keyed.row, records))
        for key, run in groupby(range(len(rows)), lambda place: row.key if (row := rows[place]) else None):
            of = list(run)
            mine, own = _taken(of, records, places)
            if key is None:
                yield from self._inserted(mine, own)
            else:
                found = [row for place in of if (row := rows[place])]
                yield from self._widened(found, own, self._seen.one_order(key))

    def _widened(self, rows: list[KeyedRow], places: Sequence[int], key: tuple[str, ...]) -> Iterator[Encoded]:
        """Encode rows in runs of lines with the same cells: one COPY can take all lines as long as these stay the
        same."""
        start = 0
        while start < len(rows):
            wider = self._seen.first_wider(rows, key, start)
            if start < wider:
                yield self._merge(rows[start:wider], places[start:wider], key)
            if wider < len(rows):
                self._seen.widen(rows[wider], key)
                self._check_merged(self._seen.merged[key], key)
            start = wider

    def _merge(self, rows: list[KeyedRow], places: Sequence[int], key: tuple[str, ...]) -> Encoded:
        old = key if key in self._seen.moving else ()
        # sorted, so that all tasks agree whether or not the table exists yet
        names = tuple(sorted(self._seen.merged[key]))
        columns = [self._layout.named(name)._replace(required=False) for name in (*names, *old)]
        self._check_count(columns)
        values = [[row.values.get(name) for row in rows] for name in names]
        values += [[row.old.get(name) for row in rows] for name in old]
        kinds: list[tuple[Change, tuple[str, ...]]] = [(row.change, tuple(row.values)) for row in rows]
        known = {kind: mark_of(kind[0], names, kind[1]) for kind in set(kinds)}
        marks = [known[kind] for kind in kinds]
        data = copy_lines([marks, *(column_cells(*pair) for pair in zip(values, columns, strict=True))])
        self._note([row.values for row in rows], columns, values, key)
        return Encoded(places, LineGroup(self._layout.table.name, names, True, key, moves=bool(old)), data)

    def _check_merged(self, names: Iterable[str], key: tuple[str, ...]) -> None:
        if taken := _RESERVED.union(old_names(key)).intersection(names):
            message = f"no row with the column {min(taken)!r} can be applied by its key: see the setting mapping"
            raise CellError("column_name", message)
        if len(frozenset(names)) > (limit := MOST_COLUMNS - len(_RESERVED) - len(key)):
            raise _too_many(self._layout.table.name, limit)

    # -- plain inserts ------------------------------------------------------------------------------------------

    def _inserted(self, records: list[Record], places: Sequence[int]) -> Iterator[Encoded]:
        found = documents(records, self._settings.raw_column)
        keys = keys_of(records)
        found = self._layout.gathered(with_keys(found, keys))
        self._note_key(records, keys)
        if columns := _columns(found):
            yield self._uniform(columns, places)
        else:
            yield from self._by_line(found, places)

    def _uniform(self, found: dict[str, list[Any]], places: Sequence[int]) -> Encoded:
        """Encode documents that all have the same fields, given as columns."""
        shape = self._layout.shape(tuple(found))
        line = self._line(shape)
        given = {column.name: found[field] for column, field in zip(shape.columns, shape.fields, strict=True)}
        nulls = [None] * len(places)
        return self._insert(line, [given.get(column.name, nulls) for column in line], places)

    def _by_line(self, found: list[Document], places: Sequence[int]) -> Iterator[Encoded]:
        """Encode documents with differing fields, those together whose lines have the same columns."""
        classes: dict[tuple[Column, ...], list[int]] = {}
        of_fields: dict[tuple[str, ...], list[int]] = {}
        for index, one in enumerate(found):
            members = of_fields.get(fields := tuple(one))
            if members is None:
                known = len(self._seen.inserted)
                line = self._line(self._layout.shape(fields))
                if len(self._seen.inserted) > known:
                    of_fields.clear()  # more columns: other lines from here on
                members = of_fields[fields] = classes.setdefault(line, [])
            members.append(index)
        for line, members in classes.items():
            rows = [self._layout.by_column(found[index]) for index in members]
            values = [[row.get(column.name) for row in rows] for column in line]
            yield self._insert(line, values, [places[index] for index in members])

    def _line(self, shape: DocumentShape) -> tuple[Column, ...]:
        """Return the columns of a line for a document of this shape. Raises ``CellError`` if there is no such line."""
        if not shape.columns:
            raise CellError("no_fields", "the record has no field that has a column")
        given = {column.name for column in shape.columns}
        for column in self._layout.table.columns.values():
            if column.required and column.name not in given:
                message = f"the column {column.name} does not accept null, and the record has no such field"
                raise CellError("not_null", message)
        line = self._seen.insert(shape.columns)
        self._check_count(line)
        return line

    def _insert(self, line: Sequence[Column], values: list[list[Any]], places: Sequence[int]) -> Encoded:
        data = copy_lines([column_cells(*pair) for pair in zip(values, line, strict=True)])
        self._note([], line, values, ())
        return Encoded(places, LineGroup(self._layout.table.name, tuple(one.name for one in line)), data)

    # -- for a table that is to be created ----------------------------------------------------------------------

    def _check_count(self, columns: Sequence[Column]) -> None:
        """Raise ``CellError`` if the table to create would exceed PostgreSQL's limit of columns."""
        if (
            not self._layout.table.exists
            and len(self._seen.types.keys() | {one.name for one in columns}) > MOST_COLUMNS
        ):
            raise _too_many(self._layout.table.name, MOST_COLUMNS)

    def _note_key(self, records: list[Record], keys: Sequence[Data]) -> None:
        if not self._seen.key and not self._layout.table.exists:
            found = (self._keyed.key_of(record, None) for record, key in zip(records, keys, strict=True) if key)
            self._seen.key = tuple(next(filter(None, found), ()))

    def _note(
        self,
        rows: Iterable[Iterable[str]],
        columns: Sequence[Column],
        values: list[list[Any]],
        key: tuple[str, ...],
    ) -> None:
        self._seen.key = self._seen.key or key
        if not self._layout.table.exists:
            self._seen.note_order(rows)
            self._seen.note_types(columns, values)


def _columns(documents: list[Document]) -> dict[str, list[Any]]:
    """Return the values by field; nothing if not all documents have the same fields."""
    fields = tuple(documents[0])
    if set(map(len, documents)) != {len(fields)}:
        return {}
    try:
        return {field: [one[field] for one in documents] for field in fields}
    except KeyError:
        return {}


def _taken(of: list[int], records: list[Record], places: Sequence[int]) -> tuple[list[Record], Sequence[int]]:
    """Return the records at these indexes, and their places."""
    if len(of) == len(records):
        return records, places
    return [records[index] for index in of], [places[index] for index in of]


def _too_many(table: TableName, limit: int) -> CellError:
    return CellError("too_many_columns", f"the table {table} would get more than {limit:,} columns with this record")
