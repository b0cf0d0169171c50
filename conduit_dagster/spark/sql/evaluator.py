"""The SQL evaluator of this process: the Spark task that it is part of, otherwise a Spark session."""

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
