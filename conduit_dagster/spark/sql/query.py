"""What Spark computes for a ``sql`` processor, as data."""

from __future__ import annotations

import msgspec

from conduit_dagster.spark.sql.types import ColumnType


class SqlQuery(msgspec.Struct, frozen=True):
    """Expressions over the columns of one struct, which is called as the query itself."""

    name: str
    """The same for the same text: a name of Spark's that no field of a record can clash with."""
    columns: tuple[ColumnType, ...]
    """The types of the columns ``c0``, ``c1``, …"""
    where: str
    """A condition; empty where each record goes on."""
    outputs: tuple[str, ...]
    """Expressions; their results are called ``o0``, ``o1``, …"""
    names: tuple[str, ...] = ()
    """What the columns are called in the record."""

    def told(self, text: str) -> str:
        """What Spark says of it, with the columns' own names."""
        for i, name in reversed(list(enumerate(self.names))):
            text = text.replace(f"{self.name}.c{i}", name)
        return text

    @property
    def struct(self) -> ColumnType:
        """Its columns as one type; never empty."""
        return ("struct", tuple((f"c{i}", kind) for i, kind in enumerate(self.columns or ("boolean",))))
