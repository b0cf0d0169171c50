"""``sql``: run a Spark SQL SELECT over each record's fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationInfo, field_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.processors.common.spark_sql.block import Columns
from conduit_dagster.processors.common.spark_sql.column_types import Answers, NotJsonError, SqlTextError, parse_columns
from conduit_dagster.processors.common.spark_sql.statement import PARTS, Computed, DocumentSelection, parse_statement
from conduit_dagster.record import Record
from conduit_dagster.sdk import DROP, Example, Nack, Processor, ProcessorContext, ProcessorSettings, Result
from conduit_dagster.spark.sql.query import SqlEvaluator, SqlQuery, evaluator

_ADVICE = "a cast, an overflow, a division by zero: try_cast, try_divide and nullif give NULL instead"


class SqlSettings(ProcessorSettings):
    """Settings of ``sql``: ``columns`` and ``query``."""

    columns: str = ""
    """The fields that the query names, with their types as in Spark: `id BIGINT, amount DECIMAL(10, 2), tags
    ARRAY<STRING>, who STRUCT<name: STRING>`. Each record is checked against all of them: a value that does not fit its
    type nacks the record; a missing field is NULL.
    """
    query: str
    """`SELECT … FROM record [WHERE …]` in Spark's SQL, one record at a time. `*` is all fields of the record, declared
    or not, as they are; an expression named as one of them replaces it. Besides the columns there are `_metadata` (a
    map), `_operation` and `_position` (text).
    """

    @field_validator("columns")
    @classmethod
    def _columns(cls, text: str) -> str:
        try:
            columns = parse_columns(text)
            for name in PARTS.keys() & columns.keys():
                raise SqlTextError(f"{name} is the record's own", "it can be used without being declared here")
        except SqlTextError as error:
            raise refuse(error.message, fix=error.fix, column=error.place) from None
        return text

    @field_validator("query")
    @classmethod
    def _query(cls, text: str, info: ValidationInfo) -> str:
        if "columns" in info.data:
            try:
                parse_statement(text, parse_columns(info.data["columns"]))
            except SqlTextError as error:
                raise refuse(error.message, fix=error.fix, column=error.place) from None
        return text


class Sql(Processor):
    """Replace each record's document by the result of a Spark SQL SELECT; records failing WHERE are dropped and acked.

    The selected columns are the new `.Payload.After`, in their order. A column selected without an expression keeps its
    value unchanged. Spark computes expressions in the stage's own task, by ANSI rules, in UTC and with case-sensitive
    names, whatever the session's settings: a record for which Spark raises an error is nacked, and the others pass. A
    result that JSON can't hold, such as NaN or a decimal with more digits than a JSON number keeps, is nacked: cast it
    to STRING. Timestamps are returned as ISO 8601 in UTC, binary data as Base64.

    A record without a document is nacked; a delete without one passes unchanged. Aggregate, window, random and clock
    functions are refused when the file is checked, and so are subqueries. `docs/sql.md` has more on types and cost.
    """

    name = "sql"
    Settings = SqlSettings
    settings: SqlSettings
    shares_records = True
    examples = (
        Example(
            "A computed field beside the others",
            {"columns": "price DECIMAL(10, 2), count INT", "query": "SELECT *, price * count AS total FROM record"},
            Record("1", {}, {"id": 1, "price": 2.5, "count": 3}),
            Record("1", {}, {"id": 1, "price": 2.5, "count": 3, "total": 7.5}),
        ),
        Example(
            "What WHERE leaves out is dropped",
            {"columns": "city STRING", "query": "SELECT city FROM record WHERE lower(city) LIKE 'b%'"},
            Record("1", {}, {"city": "Paris"}),
            DROP,
        ),
        Example(
            "Spark's error is the record's own",
            {"columns": "a INT, b INT", "query": "SELECT a / b AS ratio FROM record"},
            Record("1", {}, {"a": 1, "b": 0}),
            "sql.failed",
        ),
        Example(
            "A value that does not fit",
            {"columns": "id INT", "query": "SELECT id + 1 AS next FROM record"},
            Record("1", {}, {"id": "7"}),
            "sql.does_not_fit",
        ),
    )

    def __init__(self, settings: SqlSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        columns = parse_columns(settings.columns)
        self._statement = parse_statement(settings.query, columns)
        self._columns = Columns(columns, PARTS, self._statement.used)
        self._selection = DocumentSelection(self._statement.items)
        self._answers: Answers | None = None

    @property
    @override
    def reads_key(self) -> bool:
        return "_position" in self._statement.used or self._selection.reads_position

    @property
    @override
    def query(self) -> SqlQuery | None:
        return self._statement.query

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        results: list[Result] = list(records)
        places = [i for i, record in enumerate(records) if not _passes(record, i, results)]
        misfits, columns = self._columns.block([records[i] for i in places])
        for place, said in misfits.items():
            results[places[place]] = Nack("sql.does_not_fit", said)
        fitting = [i for place, i in enumerate(places) if place not in misfits]
        if fitting:
            self._select([records[i] for i in fitting], columns, _put(results, fitting))
        return results

    def _select(self, records: list[Record], columns: Sequence[Any], put: Callable[[int, Result], None]) -> None:
        query = self._statement.query
        if query is None:
            for record in records:
                record.after = self._selection.of(record, {})
            return
        asked = evaluator()
        self._answers = self._answers or Answers(asked.types(query))
        failed: list[int] = []
        for place, answer in enumerate(asked.ask(query, columns)):
            if answer is None:
                failed.append(place)
            elif not answer:
                put(place, DROP)
            else:
                put(place, self._selected(records[place], answer, self._answers))
        for place, nack in zip(failed, self._reasons(asked, query, columns, failed), strict=True):
            put(place, nack)

    def _selected(self, record: Record, answer: bytes, answers: Answers) -> Result:
        try:
            record.after = self._selection.of(record, answers.read(answer))
        except NotJsonError as error:
            return Nack("sql.not_json", f"a document can't hold a result of the query: {error}; cast it to STRING")
        return record

    def _reasons(self, asked: SqlEvaluator, query: SqlQuery, columns: Sequence[Any], failed: list[int]) -> list[Nack]:
        """Return the nack of each failed record, which names the part of the query that raised."""
        if not failed:
            return []
        answers = asked.ask(query, [column.take(failed) for column in columns], why=True)
        return [
            Nack("sql.failed", f"Spark raises an error for {self._raising(answer)} ({_ADVICE})") for answer in answers
        ]

    def _raising(self, answer: bytes | None) -> str:
        told = answer or b""
        if told[:1] == b"1":
            return f"WHERE {self._statement.where}"
        computed = [item for item in self._statement.items if isinstance(item, Computed)]
        raising = [f"{item.text} AS {item.name}" for item in computed if told[item.place + 1 : item.place + 2] == b"1"]
        return ", ".join(raising) or "this record"


def _passes(record: Record, place: int, results: list[Result]) -> bool:
    """Return whether a record bypasses the query: a delete without a document passes, any other one is nacked."""
    if isinstance(record.after, dict):
        return False
    if record.after is None and record.operation == "delete":
        return True
    what = "there is no .Payload.After" if record.after is None else ".Payload.After is raw data"
    results[place] = Nack(
        "sql.no_document", f"{what}: a query takes a document; put json.decode, or a condition, before it"
    )
    return True


def _put(results: list[Result], places: list[int]) -> Callable[[int, Result], None]:
    def put(place: int, result: Result) -> None:
        results[places[place]] = result

    return put
