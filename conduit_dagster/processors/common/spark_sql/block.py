"""The columns of a block of records: values checked against their types and converted to Arrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from conduit_dagster.processors.common.spark_sql.value_fitting import TypeMisfit, fitter, plain
from conduit_dagster.record import Record
from conduit_dagster.spark.sql.types import ColumnType, arrow

PART_OF: Mapping[str, Callable[[Record], Any]] = {
    "_metadata": lambda record: list(record.metadata.items()),
    "_operation": lambda record: record.operation,
    "_position": lambda record: str(record.position),
}
"""Parts of a record that a query may use besides the fields, in the form that Arrow takes."""


class SqlBlock(NamedTuple):
    """A query's input for a block of records."""

    misfits: Mapping[int, str]
    """The first misfit of each record that does not fit, by the record's index in the block."""
    arrays: list[Any]
    """Arrow arrays of the columns that the query uses, for the records that fit; at least one array."""


class Columns:
    """The declared columns, and the columns that a query uses."""

    def __init__(self, columns: Mapping[str, ColumnType], parts: Mapping[str, ColumnType], used: Sequence[str]) -> None:
        self._columns = {name: _Column(name, kind) for name, kind in columns.items()}
        self._parts = {name: parts[name] for name in used if name in parts and name not in columns}
        self._used = used

    def block(self, records: Sequence[Record]) -> SqlBlock:
        """Return the query's input; each value is checked once. Every ``record.after`` must be a document."""
        import pyarrow as pa

        misfits: dict[int, str] = {}
        arrays: dict[str, Any] = {}
        for name, column in self._columns.items():
            arrays[name], found = column.array(records)
            for place, misfit in found.items():
                misfits.setdefault(place, misfit.said(name))
        for name, kind in self._parts.items():
            arrays[name] = pa.array(list(map(PART_OF[name], records)), arrow(kind))
        chosen = [arrays[name] for name in self._used] or [pa.nulls(len(records), pa.bool_())]
        if misfits:
            fitting = pa.array([place for place in range(len(records)) if place not in misfits], pa.int64())
            chosen = [array.take(fitting) for array in chosen]
        return SqlBlock(misfits, chosen)


class _Column:
    def __init__(self, name: str, kind: ColumnType) -> None:
        self._name, self._kind = name, kind
        self._plain, self._fit = plain(kind), fitter(kind)

    def array(self, records: Sequence[Any]) -> tuple[Any, dict[int, TypeMisfit]]:
        """Return the values as an Arrow array, with null for values that do not fit, and the misfits by index."""
        import pyarrow as pa

        name = self._name
        values = [record.after.get(name) for record in records]
        if self._is_plain(values) and (taken := self._taken(values)) is not None:
            return taken, {}
        fitted: list[Any] = []
        misfits: dict[int, TypeMisfit] = {}
        for place, value in enumerate(values):
            try:
                fitted.append(self._fit(value))
            except TypeMisfit as misfit:
                fitted.append(None)
                misfits[place] = misfit
        return pa.array(fitted, arrow(self._kind)), misfits

    def _is_plain(self, values: list[Any]) -> bool:
        return bool(self._plain) and self._plain.issuperset(map(type, values))

    def _taken(self, values: list[Any]) -> Any:
        """Return plain values as an Arrow array; None if Arrow refuses one, such as an integer that is too long."""
        import pyarrow as pa

        if self._kind == "double" and _has_nan(values):
            return None
        try:
            return pa.array(values, arrow(self._kind))
        except (pa.ArrowException, OverflowError, ValueError):
            return None


def _has_nan(values: Iterable[float | None]) -> bool:
    return not all(map(math.isfinite, filter(None, values)))
