"""Data frames of questions, and the expressions that answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.spark.explain import is_sparks
from conduit_dagster.spark.jobs import cancellable, lost_session, new_tag
from conduit_dagster.spark.sql.channel import answering, asks, question_schema, rows_of
from conduit_dagster.spark.sql.query import Answer, SqlQuery, ddl
from conduit_dagster.spark.sql.sql_session import sql_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_JSON = (
    "map('ignoreNullFields', 'false', 'timeZone', 'UTC', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\", "
    "'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\")"
)


def questions_schema(queries: Iterable[SqlQuery]) -> str:
    """Return the schema of questions: a row per record. Rows with neither address nor seq are filler."""
    asked = [f"{query.name} {ddl(query.struct)}" for query in queries]
    return ", ".join(["address string", "seq bigint", "why boolean", *asked, "filler string"])


def answered(frame: DataFrame, queries: Sequence[SqlQuery]) -> DataFrame:
    """Return a row for each question, in the same order and partition: a projection, without a shuffle."""
    from pyspark.sql import functions as f

    # a row belongs to the one query whose column is set; a CASE never computes its branches in advance
    branches = " ".join(
        f"WHEN {q.name} IS NOT NULL THEN CASE WHEN why THEN {_why(q)} ELSE {result_of(q)} END" for q in queries
    )
    return frame.select("address", "seq", f.expr(f"CASE {branches} END").alias("answer"), "filler")


def result_of(query: SqlQuery) -> str:
    """Return the expression for all results of a record; NULL if any part raises: ``try_to_binary`` catches it."""
    outputs = ", ".join(f"({output}) AS o{i}" for i, output in enumerate(query.outputs))
    results = f"to_json(struct({outputs}), {_JSON})" if query.outputs else "'{}'"
    chosen = f"CASE WHEN ({query.where}) THEN {results} ELSE '' END" if query.where else results
    return f"try_to_binary({chosen}, 'utf-8')"


def _why(query: SqlQuery) -> str:
    parts = "".join(f", {_raises(output)}" for output in query.outputs)
    asked = f"concat('0'{parts})"
    if query.where:
        asked = f"CASE WHEN {_raises(query.where)} = '1' THEN '1' ELSE {asked} END"
    return f"try_to_binary({asked}, 'utf-8')"


def _raises(part: str) -> str:
    return f"CASE WHEN try_to_binary(to_json(struct(({part}) AS o), {_JSON}), 'utf-8') IS NULL THEN '1' ELSE '0' END"


_types: dict[SqlQuery, str] = {}


def types_of(spark: SparkSession, node: str, query: SqlQuery) -> str:
    """Return the types of the query's outputs, as a JSON schema; computed by Spark once per query.

    Raises ``FatalError`` (``sql.query``) for a query that Spark rejects.
    """
    if query not in _types:
        _types[query] = _analysed(spark, node, query)
    return _types[query]


def _analysed(spark: SparkSession, node: str, query: SqlQuery) -> str:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    try:
        frame = spark.range(0).select(f.expr(f"CAST(NULL AS {ddl(query.struct)})").alias(query.name))
        where = [f.expr(query.where).alias("where")] if query.where else []
        outputs = [f.expr(output).alias(f"o{i}") for i, output in enumerate(query.outputs)]
        schema: Any = frame.select(*outputs, *where).schema
    except AnalysisException as error:
        raise _refused(node, query.told(str(error).partition("\n== SQL")[0].partition(";\n'")[0].strip())) from error
    if query.where:
        kind = schema["where"].dataType.simpleString()
        if kind not in ("boolean", "void"):
            raise _refused(node, f"the condition behind WHERE is a {kind}, not a boolean")
    return schema.json()


def _refused(node: str, message: str) -> FatalError:
    return FatalError(
        f"Spark does not take the query: {message}",
        code="sql.query",
        node=node,
        fix="fix the query; `conduit-dagster dry-run FILE` tries it on the first records",
    )


def with_queries(
    spark: SparkSession,
    count: int,
    function: Callable[[Iterator[Any]], Iterator[Any]],
    schema: str,
    queries: Mapping[str, SqlQuery],
) -> DataFrame:
    """Return a frame with a task for each number from 0 to ``count`` - 1, whose ``function`` may use these queries.

    ``spark``: a session for SQL. ``queries``: by node. Raises like :func:`types_of`.
    """
    types = {query.name: types_of(spark, node, query) for node, query in queries.items()}
    # nodes with the same text share a query
    several = tuple({query.name: query for query in queries.values()}.values())
    return _answers(spark, count, several).mapInArrow(partial(answering, several, types, function), schema)


@lru_cache(maxsize=32)
def _answers(spark: SparkSession, count: int, queries: tuple[SqlQuery, ...]) -> DataFrame:
    """Return the part of the frame that is the same in every step: building it is half the cost of a small step."""
    asked = spark.range(0, count, 1, count).mapInArrow(partial(asks, queries), questions_schema(queries))
    return answered(asked, queries)


def _open() -> SparkSession:
    from conduit_dagster.spark.session import SparkSettings, open_session

    return open_session(SparkSettings(), "conduit-dagster")


class SessionEvaluator:
    """Evaluator that runs a Spark job per block: for a few records."""

    def __init__(self, opener: Callable[[], SparkSession] | None) -> None:
        self._opener = opener or _open

    def ask(self, query: SqlQuery, columns: Sequence[Any], why: bool = False) -> list[Answer]:
        """Return the answers, as :class:`~conduit_dagster.spark.sql.query.SqlEvaluator` defines them."""
        import pyarrow as pa

        rows = rows_of(query, columns, why, question_schema([query]))
        table = pa.Table.from_batches([rows])

        def answers(spark: SparkSession) -> list[Answer]:
            frame = spark.createDataFrame(table, questions_schema([query]))
            return answered(frame, [query]).toArrow().column("answer").to_pylist()

        return self._run(answers)

    def types(self, query: SqlQuery) -> str:
        """Return the types of the outputs, as :class:`~conduit_dagster.spark.sql.query.SqlEvaluator` does."""
        return self._run(lambda spark: types_of(spark, "", query))

    def _run(self, action: Callable[[SparkSession], T]) -> T:
        """Return the action's result in the session for SQL.

        Raises ``TransientError`` if a session is lost, or its cluster gives no executor (``spark.no_executors``).
        """
        used = self._opener()
        try:
            used = sql_session(used)
            # a job of its own: without executors it is given up, as a step's is
            with cancellable(used, new_tag()):
                return action(used)
        except Exception as error:
            if is_sparks(error) and (lost := lost_session(used, error)) is not None:
                raise lost from error
            raise
