"""Who computes SQL for this process: the Spark task it is part of, else a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from conduit_dagster.spark.sql.query import SqlQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = bytes | None
"""A record's results as a JSON object; empty where the condition does not hold, None where Spark raised."""


class Asker(Protocol):
    """Computes a query for a block of records."""

    def ask(self, query: SqlQuery, columns: Sequence[Any], why: bool = False) -> list[Answer]:
        """An answer for each row of the Arrow ``columns``, in order.

        ``why``: instead, which part of the query raises: a ``1`` for each that does, else a ``0``; the condition first.
        """
        ...

    def types(self, query: SqlQuery) -> str:
        """The types of its outputs, as Spark writes a schema in JSON."""
        ...


_askers: list[Asker] = []
_openers: list[Callable[[], SparkSession]] = []


@contextmanager
def asking(asker: Asker) -> Generator[None]:
    """As long as it lasts, this asker is the process's."""
    _askers.append(asker)
    try:
        yield
    finally:
        _askers.pop()


def open_with(opener: Callable[[], SparkSession]) -> None:
    """Which session is asked where there is no task: as the project's settings say."""
    _openers[:] = [opener]


def asker() -> Asker:
    """The process's. Outside of a task the first question starts Spark, where nobody has."""
    if _askers:
        return _askers[-1]
    from conduit_dagster.spark.sql.local import LocalAsker

    return LocalAsker(_openers[0] if _openers else None)
