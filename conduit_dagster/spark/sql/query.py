"""The query of a ``sql`` processor, as data."""

from __future__ import annotations

import msgspec

from conduit_dagster.spark.sql.types import ColumnType


class SqlQuery(msgspec.Struct, frozen=True):
    """Expressions over the columns of one struct, which has the query's name."""

    name: str
    """The name in Spark, equal for equal text; no field of a record can clash with it."""
    columns: tuple[ColumnType, ...]
    """The types of the columns ``c0``, ``c1``, …"""
    where: str
    """A condition; empty if every record passes."""
    outputs: tuple[str, ...]
    """Expressions; their results are named ``o0``, ``o1``, …"""
    names: tuple[str, ...] = ()
    """The columns' names in the record."""

    def told(self, text: str) -> str:
        """Return a message of Spark's with the columns' names in the record."""
        for i, name in reversed(list(enumerate(self.names))):
            text = text.replace(f"{self.name}.c{i}", name)
        return text

    @property
    def struct(self) -> ColumnType:
        """The query's columns as one struct type; never empty."""
        return ("struct", tuple((f"c{i}", kind) for i, kind in enumerate(self.columns or ("boolean",))))
