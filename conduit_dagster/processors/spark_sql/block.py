"""The columns of a block of records: each value checked against its type, and as Arrow has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from conduit_dagster.processors.spark_sql.fitting import Misfit, fitter, plain
from conduit_dagster.record import Record
from conduit_dagster.spark.sql.types import ColumnType, arrow

PART_OF: Mapping[str, Callable[[Record], Any]] = {
    "_metadata": lambda record: list(record.metadata.items()),
    "_operation": lambda record: record.operation,
    "_position": lambda record: str(record.position),
}
"""What a query may use besides the fields, as Arrow takes it."""


class Columns:
    """The declared columns, and those that a query uses."""

    def __init__(self, columns: Mapping[str, ColumnType], parts: Mapping[str, ColumnType], used: Sequence[str]) -> None:
        self._columns = {name: _Column(name, kind) for name, kind in columns.items()}
        self._parts = {name: parts[name] for name in used if name in parts and name not in columns}
        self._used = used

    def misfits(self, records: Sequence[Record]) -> dict[int, str]:
        """By place, what does not fit: the first of each record. Their documents are ``record.after``."""
        found: dict[int, str] = {}
        for column in self._columns.values():
            for place, misfit in column.misfits(records).items():
                found.setdefault(place, misfit.said(column.name))
        return found

    def arrays(self, records: Sequence[Record]) -> list[Any]:
        """What the query uses of records that fit, each as an Arrow array; at least one."""
        import pyarrow as pa

        if not self._used:
            return [pa.nulls(len(records), pa.bool_())]
        return [self._array(name, records) for name in self._used]

    def _array(self, name: str, records: Sequence[Record]) -> Any:
        import pyarrow as pa

        if name in self._parts:
            return pa.array(list(map(PART_OF[name], records)), arrow(self._parts[name]))
        return self._columns[name].array(records)


class _Column:
    def __init__(self, name: str, kind: ColumnType) -> None:
        self.name, self._kind = name, kind
        self._plain, self._fit = plain(kind), fitter(kind)

    def misfits(self, records: Sequence[Any]) -> dict[int, Misfit]:
        values = self._values(records)
        if self._is_plain(values) and self._taken(values) is not None:
            return {}
        found: dict[int, Misfit] = {}
        for place, value in enumerate(values):
            try:
                self._fit(value)
            except Misfit as misfit:
                found[place] = misfit
        return found

    def array(self, records: Sequence[Any]) -> Any:
        import pyarrow as pa

        values = self._values(records)
        return pa.array(values if self._is_plain(values) else list(map(self._fit, values)), arrow(self._kind))

    def _values(self, records: Sequence[Any]) -> list[Any]:
        name = self.name
        return [record.after.get(name) for record in records]

    def _is_plain(self, values: list[Any]) -> bool:
        return bool(self._plain) and self._plain.issuperset(map(type, values))

    def _taken(self, values: list[Any]) -> Any:
        """What Arrow makes of plain values; None where it refuses one, such as an integer that is too long."""
        import pyarrow as pa

        try:
            array = pa.array(values, arrow(self._kind))
        except (pa.ArrowException, OverflowError, ValueError):
            return None
        return None if self._kind == "double" and _has_nan(values) else array


def _has_nan(values: Iterable[float | None]) -> bool:
    return not all(map(math.isfinite, filter(None, values)))
