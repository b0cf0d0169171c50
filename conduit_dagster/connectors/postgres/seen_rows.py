"""What the rows staged so far decide about those that follow, and the column types of a table to create."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import accumulate, chain, groupby, islice
from typing import Any, Final

from conduit_dagster.connectors.postgres.catalog import Column
from conduit_dagster.connectors.postgres.keyed_rows import KeyedRow
from conduit_dagster.connectors.postgres.new_rows import NewShape
from conduit_dagster.lazy_records import operations_of
from conduit_dagster.record import Record
from conduit_dagster.whole_numbers import loses_digits

_CREATES_IN_A_ROW = 1_000

Names = tuple[str, ...]

_TYPES: Final[dict[type, str]] = {
    str: "text",
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    dict: "jsonb",
    list: "jsonb",
    bytes: "bytea",
    Decimal: "numeric",
    datetime: "timestamptz",
    date: "date",
}
_LARGE: Final = "bigint, not double precision"
"""A ``bigint`` with numbers that would lose digits in a ``double precision``."""
_NUMBERS: Final = ("bigint", _LARGE, "numeric", "double precision")


def column_type(values: Sequence[Any]) -> str | None:
    """Return the column type that holds all values, for :func:`common`; None if all are null."""
    found = {_TYPES.get(kind, "text") for kind in set(map(type, values)) if kind is not type(None)}
    if "bigint" in found:
        found = (found - {"bigint"}) | {_whole([value for value in values if type(value) is int])}
    return common(found)


def _whole(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    if least < -(1 << 63) or most >= 1 << 63:
        return "numeric"
    if least >= -(1 << 53) and most <= 1 << 53:
        return "bigint"
    return _LARGE if any(loses_digits(number, 53) for number in numbers) else "bigint"


def common(types: Iterable[str | None]) -> str | None:
    """Return the common type of several column types: numbers widen, any other mixture becomes text."""
    found = {name for name in types if name is not None}
    if len(found) <= 1:
        return next(iter(found), None)
    if not found <= set(_NUMBERS):
        return "text"
    if "numeric" in found or {_LARGE, "double precision"} <= found:
        return "numeric"
    return "double precision" if "double precision" in found else _LARGE


def declared(types: Iterable[str | None]) -> str:
    """Return the type of a new column for several ones of :func:`common`, as SQL."""
    found = common(types) or "text"
    return "bigint" if found == _LARGE else found


@dataclass
class SeenRows:
    """What one task has staged for one table.

    Invariant: it grows row by row, and a row's line depends only on the row and on the rows before it. So the same rows
    give the same lines, however they are divided into blocks: a step that is staged again from the log comes in other
    blocks than the source gave.
    """

    creates: int = _CREATES_IN_A_ROW
    """Creates in a row; at the beginning, and at most, as many as it takes to insert the next ones."""
    copied: NewShape | None = None
    """Shape of the rows copied as new: see :class:`~conduit_dagster.connectors.postgres.new_rows.DirectCopy`."""
    is_mixed: bool = False
    """Whether a row came that is not of that shape: groups that alternate would need a merge for each of their runs."""
    inserted: dict[str, Column] = field(default_factory=dict[str, Column])
    """Columns of the inserts, in order of appearance."""
    keys: dict[frozenset[str], Names] = field(default_factory=dict[frozenset[str], Names])
    """The first order in which a key's columns came."""
    merged: dict[Names, frozenset[str]] = field(default_factory=dict[Names, frozenset[str]])
    """Columns of the merges by key."""
    moving: frozenset[Names] = frozenset()
    """Keys of which rows have changed."""
    types: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Types of the columns of a table to create, in order of appearance."""
    key: Names = ()
    """Primary key of a table to create."""

    def copy(self) -> SeenRows:
        """Return a copy that changes by itself."""
        return replace(
            self,
            inserted=dict(self.inserted),
            keys=dict(self.keys),
            merged=dict(self.merged),
            types=dict(self.types),
        )

    def forget_columns(self) -> None:
        """Begin new lines, as the table's columns have changed."""
        self.inserted, self.merged, self.copied = {}, {}, None

    # -- the way of a row ---------------------------------------------------------------------------------------

    def divided(self, records: Sequence[Record]) -> list[tuple[bool, int]]:
        """Divide records into runs that are inserted, and runs that may meet existing rows; return these as pairs of
        whether it is inserted, and its end.

        For tables where a create never meets a row. After another record, only many creates in a row are worth a batch
        of their own.
        """
        operations = operations_of(records)
        if "create" not in operations:
            self.creates = 0
            return [(False, len(records))]
        if operations == {"create"} and self.creates == _CREATES_IN_A_ROW:
            return [(True, len(records))]
        inserted = list(map(self._is_inserted, records))
        ends = accumulate(sum(1 for _ in run) for _, run in groupby(inserted))
        return [(inserted[end - 1], end) for end in ends]

    def _is_inserted(self, record: Record) -> bool:
        if record.operation != "create":
            self.creates = 0
            return False
        if self.creates == _CREATES_IN_A_ROW:
            return True
        self.creates += 1
        return False

    def copies(self, shape: NewShape) -> bool:
        """Return whether a row of this shape goes on with those copied so far."""
        if self.is_mixed or self.copied not in (None, shape):
            return False
        self.copied = shape
        return True

    # -- columns ------------------------------------------------------------------------------------------------

    def one_order(self, key: Names) -> Names:
        """Return the key's columns in the order in which they came first."""
        return self.keys.setdefault(frozenset(key), key)

    def insert(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Add the columns of an insert, and return those of its line: an omitted one is NULL, unless it has a
        default."""
        given = {column.name: column for column in columns}
        self.inserted.update((name, column) for name, column in given.items() if name not in self.inserted)
        known = self.inserted.items()
        return tuple(given.get(name, column) for name, column in known if name in given or not column.has_default)

    def first_wider(self, rows: Sequence[KeyedRow], key: Names, start: int) -> int:
        """Return the index of the first row from ``start`` on that needs more cells than the lines of its key have so
        far; the number of rows if there is none."""
        known = self.merged.get(key, frozenset[str]())
        moves = key in self.moving
        for index, row in enumerate(islice(rows, start, None), start):
            if not row.values.keys() <= known or (row.old and not moves) or not known.issuperset(row.lacks):
                return index
        return len(rows)

    def widen(self, row: KeyedRow, key: Names) -> None:
        """Give the lines of the row's key, from this row on, the cells that it needs."""
        self.merged[key] = self.merged.get(key, frozenset()).union(row.values, row.lacks)
        if row.old:
            self.moving |= {key}

    # -- a table to create --------------------------------------------------------------------------------------

    def note_order(self, rows: Iterable[Iterable[str]]) -> None:
        """Keep the columns in order of appearance, so that the created table is easy to read."""
        for name in chain.from_iterable(rows):
            self.types.setdefault(name, None)

    def note_types(self, columns: Iterable[Column], values: Iterable[list[Any]]) -> None:
        """Add the types of values to those of their columns."""
        for column, of_column in zip(columns, values, strict=True):
            self.types[column.name] = common((self.types.get(column.name), column_type(of_column)))
