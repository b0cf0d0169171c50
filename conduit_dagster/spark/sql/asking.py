"""The SQL evaluator of this process: the Spark task that it is part of, else a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from conduit_dagster.spark.sql.query import SqlQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = bytes | None
"""A record's results as a JSON object; empty if the condition does not hold, None if Spark raised."""


class SqlEvaluator(Protocol):
    """Evaluator of queries for blocks of records."""

    def ask(self, query: SqlQuery, columns: Sequence[Any], why: bool = False) -> list[Answer]:
        """Return an answer for each row of the Arrow ``columns``, in order.

        ``why``: return which parts of the query raise instead: ``1`` for each that does, else ``0``; condition first.
        """
        ...

    def types(self, query: SqlQuery) -> str:
        """Return the types of the query's outputs, as Spark's JSON schema."""
        ...


_askers: list[SqlEvaluator] = []
_openers: list[Callable[[], SparkSession]] = []


@contextmanager
def asking(asker: SqlEvaluator) -> Generator[None]:
    """Make this the process's evaluator within the block."""
    _askers.append(asker)
    try:
        yield
    finally:
        _askers.pop()


def open_with(opener: Callable[[], SparkSession]) -> None:
    """Set how to open the session, by the project's settings, that answers outside of a task."""
    _openers[:] = [opener]


def asker() -> SqlEvaluator:
    """Return the process's evaluator. Outside of a task the first question starts Spark if it is not running yet."""
    if _askers:
        return _askers[-1]
    from conduit_dagster.spark.sql.local import LocalAsker

    return LocalAsker(_openers[0] if _openers else None)
