"""The query of a ``sql`` processor, as data, the types of its columns, and what evaluates it in this process.

A type is the name of a simple one, or ``("decimal", digits, scale)``, ``("array", of)``, ``("map", of)`` with string
keys, or ``("struct", ((name, of), …))``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ColumnType = str | tuple[Any, ...]

SIMPLE = (
    "boolean", "tinyint", "smallint", "int", "bigint", "double", "string", "date", "timestamp", "timestamp_ntz"
)  # fmt: skip


def ddl(kind: ColumnType) -> str:
    """Return the type in Spark's DDL."""
    if isinstance(kind, str):
        return kind
    match kind:
        case ("decimal", digits, scale):
            return f"decimal({digits}, {scale})"
        case ("array", of):
            return f"array<{ddl(of)}>"
        case ("map", of):
            return f"map<string, {ddl(of)}>"
        case _:
            return "struct<" + ", ".join(f"{quoted(name)}: {ddl(of)}" for name, of in kind[1]) + ">"


def quoted(name: str) -> str:
    """Return the name as a quoted Spark identifier."""
    return "`" + name.replace("`", "``") + "`"


def arrow(kind: ColumnType) -> Any:
    """Return the Arrow type that Spark expects for the type."""
    import pyarrow as pa

    if isinstance(kind, str):
        simple = {
            "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(),
            "bigint": pa.int64(), "double": pa.float64(), "string": pa.string(), "date": pa.date32(),
            "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"),
        }  # fmt: skip
        return simple[kind]
    match kind:
        case ("decimal", digits, scale):
            return pa.decimal128(digits, scale)
        case ("array", of):
            return pa.list_(arrow(of))
        case ("map", of):
            return pa.map_(pa.string(), arrow(of))
        case _:
            return pa.struct([(name, arrow(of)) for name, of in kind[1]])


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
        """Return Spark's message with the columns' names in the record."""
        for i, name in reversed(list(enumerate(self.names))):
            text = text.replace(f"{self.name}.c{i}", name)
        return text

    @property
    def struct(self) -> ColumnType:
        """The query's columns as one struct type; never empty."""
        return ("struct", tuple((f"c{i}", kind) for i, kind in enumerate(self.columns or ("boolean",))))


Answer = bytes | None
"""A record's results as a JSON object; empty if the condition does not hold, None if Spark raised."""


class SqlEvaluator(Protocol):
    """Evaluator of queries for blocks of records."""

    def ask(self, query: SqlQuery, columns: Sequence[Any], why: bool = False) -> list[Answer]:
        """Return an answer for each row of the Arrow ``columns``, in order.

        ``why``: return instead which parts of the query raise, condition first: ``1`` for each that does, otherwise
        ``0``.
        """
        ...

    def types(self, query: SqlQuery) -> str:
        """Return the types of the query's outputs, as Spark's JSON schema."""
        ...


_evaluators: list[SqlEvaluator] = []
_openers: list[Callable[[], SparkSession]] = []


@contextmanager
def evaluating_with(own: SqlEvaluator) -> Generator[None]:
    """Make this the process's evaluator within the block."""
    _evaluators.append(own)
    try:
        yield
    finally:
        _evaluators.pop()


def open_with(opener: Callable[[], SparkSession]) -> None:
    """Set the opener of the session, with the project's settings, that answers outside of a task."""
    _openers[:] = [opener]


def evaluator() -> SqlEvaluator:
    """Return the process's evaluator. Outside of a task the first question starts Spark if it is not running yet."""
    if _evaluators:
        return _evaluators[-1]
    from conduit_dagster.spark.sql.frame import SessionEvaluator

    return SessionEvaluator(_openers[0] if _openers else None)
