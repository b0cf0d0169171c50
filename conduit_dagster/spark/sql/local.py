"""SQL evaluation through a session, for dry runs, where no task runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from conduit_dagster.spark.sql.asking import Answer
from conduit_dagster.spark.sql.frame import answered, questions_schema, types_of
from conduit_dagster.spark.sql.query import SqlQuery
from conduit_dagster.spark.sql.query_rows import question_schema, rows_of
from conduit_dagster.spark.sql.sql_session import sql_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _open() -> SparkSession:
    from conduit_dagster.spark.session import SparkSettings, open_session

    return open_session(SparkSettings(), "conduit-dagster")


class LocalAsker:
    """Evaluator that runs a Spark job per block: for a few records."""

    def __init__(self, opener: Callable[[], SparkSession] | None) -> None:
        self._opener = opener or _open

    def ask(self, query: SqlQuery, columns: Sequence[Any], why: bool = False) -> list[Answer]:
        """Return the answers, as :class:`~conduit_dagster.spark.sql.asking.SqlEvaluator` defines them."""
        import pyarrow as pa

        rows = rows_of(query, columns, why, question_schema([query]))
        frame = sql_session(self._opener()).createDataFrame(pa.Table.from_batches([rows]), questions_schema([query]))
        return answered(frame, [query]).toArrow().column("answer").to_pylist()

    def types(self, query: SqlQuery) -> str:
        """Return the types of the outputs, as :class:`~conduit_dagster.spark.sql.asking.SqlEvaluator` defines them."""
        return types_of(sql_session(self._opener()), "", query)
