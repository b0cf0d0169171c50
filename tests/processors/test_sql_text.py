"""``sql``: what validation refuses, without Spark, and the position in the text."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from conduit_dagster.processors.common.spark_sql.column_types import parse_columns
from conduit_dagster.processors.common.spark_sql.query_functions import ALLOWED, REFUSED
from conduit_dagster.processors.sql import SqlSettings

COLUMNS = "a INT, b STRING, l ARRAY<INT>, s STRUCT<x: INT>"


def refused(columns: str, query: str) -> tuple[str, int]:
    """The message, and the beginning of the text it points to."""
    with pytest.raises(ValidationError) as caught:
        SqlSettings.model_validate({"columns": columns, "query": query})
    [error] = caught.value.errors()
    assert error["ctx"]["fix"], "it says what to do"
    return error["msg"], error["ctx"]["column"]


@pytest.mark.parametrize(
    ("query", "message", "at"),
    [
        ("SELECT a FROM record ORDER BY a", "ORDER BY looks beyond one record", "ORDER"),
        ("SELECT a FROM record LIMIT 1", "LIMIT looks beyond one record", "LIMIT"),
        ("SELECT DISTINCT a FROM record", "DISTINCT looks beyond one record", "DISTINCT"),
        ("SELECT a FROM record GROUP BY a", "GROUP BY looks beyond one record", "GROUP"),
        ("SELECT a FROM record HAVING a > 1", "HAVING looks beyond one record", "HAVING"),
        ("SELECT a FROM record CROSS JOIN record r", "JOIN looks beyond one record", "JOIN"),
        ("SELECT a FROM record LATERAL VIEW explode(l) t AS c", "LATERAL VIEW looks beyond one record", "LATERAL"),
        ("WITH r AS (SELECT 1) SELECT a FROM record", "WITH looks beyond one record", "WITH"),
        ("SELECT a FROM record UNION ALL SELECT a FROM record", "this is UNION, not a SELECT", "SELECT"),
        ("SELECT (SELECT 1) AS x FROM record", "a subquery looks beyond one record", "SELECT"),
        ("SELECT a FROM record WHERE a IN (SELECT a FROM record)", "a subquery looks beyond one record", None),
        ("SELECT a FROM record WHERE EXISTS (SELECT 1)", "a subquery looks beyond one record", None),
        ("SELECT a FROM (SELECT a FROM record)", "a query is over the record alone", "FROM"),
        ("SELECT a FROM other", "a query is over the record alone", "FROM"),
        ("SELECT a FROM db.record", "a query is over the record alone", "FROM"),
        ("SELECT a", "a query is over the record alone", "SELECT"),
        ("SELECT a FROM record; SELECT a FROM record", "there are 2 statements", "SELECT"),
        ("", "there are 0 statements", ""),
        ("DROP TABLE record", "this is DROP, not a SELECT", "DROP"),
        ("SELECT a, FROM FROM record", None, None),
        ("SELECT a + FROM record", None, None),
        ("SELECT 'x FROM record", None, None),
        ("SELECT sum(a) AS x FROM record", "sum() looks at several records", "sum"),
        ("SELECT count(*) AS x FROM record", "count() looks at several records", "count"),
        ("SELECT row_number() OVER (ORDER BY a) AS x FROM record", "row_number() looks at several", "row_number"),
        ("SELECT a, explode(l) AS x FROM record", "explode() makes several rows of one", "explode"),
        ("SELECT inline(array(s)) AS x FROM record", "inline() makes several rows of one", "inline"),
        ("SELECT rand() AS x FROM record", "rand() gives something else each time", "rand"),
        ("SELECT a FROM record WHERE uuid() > ''", "uuid() gives something else each time", "uuid"),
        ("SELECT now() AS x FROM record", "now() gives something else each time", "now"),
        ("SELECT a, current_date AS x FROM record", "current_date() gives something else each time", "current_date"),
        ("SELECT a AS x, CURRENT_TIMESTAMP AS y FROM record", "current_timestamp() gives something else", None),
        ("SELECT TIMESTAMP 'now' AS x FROM record", "now gives another time at each evaluation", None),
        ("SELECT CAST(' Today' AS DATE) AS x FROM record", " Today gives another time at each evaluation", None),
        ("SELECT session_user AS x FROM record", "session_user() looks beyond the record", "session_user"),
        ("SELECT monotonically_increasing_id() AS x FROM record", "monotonically_increasing_id() looks beyond", None),
        ("SELECT java_method('java.lang.System', 'exit', 1) AS x FROM record", "java_method() looks beyond", None),
        ("SELECT map_from_entries(l) AS x FROM record", "map_from_entries() may give the same key twice", None),
        ("SELECT map(b, a) AS x FROM record", "the keys of a map may be the same, or NULL", "b,"),
        ("SELECT named_struct('x', a, 'x', a + 1) AS x FROM record", "the field x of a struct is given twice", "named"),
        ("SELECT array(struct(a, b AS a)) AS x FROM record", "the field a of a struct is given twice", "struct"),
        ("SELECT struct(*) AS x FROM record", "* inside an expression", "*"),
        ("SELECT a, to_json(struct(*)) AS x FROM record", "* inside an expression", "*"),
        ("SELECT uper(b) AS x FROM record", "Spark has no function uper", "uper"),
        ("SELECT c FROM record", "there is no column c", "c FROM"),
        ("SELECT A FROM record", "there is no column A", "A FROM"),
        ("SELECT other.a FROM record", "there is no column other", "other"),
        ("SELECT transform(l, x -> x + y) AS x FROM record", "there is no column y", "y)"),
        ("SELECT a + 1 FROM record", "the column a + 1 has no name", "a + 1"),
        ("SELECT a, b AS a FROM record", "a is selected twice", "b AS a"),
        ("SELECT *, * FROM record", "* is selected twice", None),
        ("SELECT a AS x FROM record WHERE a = :p", None, None),
        ("SELECT a FROM record WHERE a = ?", None, None),
    ],
)  # fmt: skip
def test_a_query_that_is_refused(query: str, message: str | None, at: str | None) -> None:
    said, place = refused(COLUMNS, query)
    assert message is None or said.startswith(message)
    if at is not None:
        assert query[place:].startswith(at)


@pytest.mark.parametrize(
    "expression",
    [
        "datediff('today', d)",
        "datediff(d, (r'today'))",
        "date_add('tomorrow', 1)",
        "to_date('yesterday')",
        "ts < 'now'",
        "ts BETWEEN '2024-01-01' AND ('now')",
        "d IN ('2024-01-01', 'today')",
        "coalesce(ts, 'now')",
        "nullif('today', d)",
        "if(b = 'x', ts, 'now')",
        "CASE WHEN b = 'x' THEN 'now' ELSE ts END",
        "CASE WHEN b = 'x' THEN 'a' ELSE coalesce('now', ts) END",
        "CASE d WHEN 'today' THEN 1 END",
        "times['a'] < 'now'",
        "events[0].at = 'now'",
        "greatest('now', ts)",
        "array('now', ts)",
        "CAST(('now') AS DATE)",
        "CAST(concat('to', lower('TODAY')) AS DATE)",
        "CAST(coalesce('now', 'x') AS TIMESTAMP)",
        "hour('now')",
    ],
)
def test_a_text_that_may_be_taken_for_the_current_time_is_refused(expression: str) -> None:
    columns = "b STRING, d DATE, ts TIMESTAMP, times MAP<STRING, TIMESTAMP>, events ARRAY<STRUCT<at: TIMESTAMP>>"
    query = f"SELECT b, {expression} AS x FROM record"
    message, place = refused(columns, query)
    assert "gives another time at each evaluation" in message and query[place:].startswith(("'", "r'"))
    assert refused(columns, f"SELECT b FROM record WHERE {expression} IS NOT NULL")[0] == message


@pytest.mark.parametrize(
    "expression",
    [
        "'now'",
        "b = 'now'",
        "lower(trim(b)) IN ('today', 'tomorrow')",
        "b LIKE 'today%'",
        "coalesce(b, 'now')",
        "nullif(b, 'today')",
        "if(a > 1, 'now', 'later')",
        "CASE WHEN a > 1 THEN 'today' WHEN a > 0 THEN 'yesterday' ELSE b END",
        "CASE b WHEN 'today' THEN 1 ELSE 0 END",
        "concat('now ', b)",
        "length(concat_ws(' now ', b, 'now'))",
        "s.y = 'now'",
        "_metadata['now'] = 'now'",
        "array_contains(tags, 'now')",
        "replace(b, 'today', '')",
    ],
)
def test_a_text_that_stays_text_may_say_now(expression: str) -> None:
    columns = "a INT, b STRING, tags ARRAY<STRING>, s STRUCT<y: STRING>"
    SqlSettings.model_validate({"columns": columns, "query": f"SELECT {expression} AS x FROM record"})


@pytest.mark.parametrize(
    ("columns", "message", "at"),
    [
        ("a FLOAT", "the type FLOAT is not a type of a record's field", "a"),
        ("a INT, `b c` VARCHAR(3)", "the type VARCHAR(3) is not a type of a record's field", "`b c`"),
        ("a INT, a STRING", "the column a is listed twice", "a STRING"),
        ("a DECIMAL(39, 0)", "DECIMAL(39, 0) has more digits than Spark's", "a"),
        ("a DECIMAL(3, 4)", "DECIMAL(3, 4) has more digits than Spark's", "a"),
        ("a MAP<INT, INT>", "the keys of a document are text", "a"),
        ("a STRUCT<b: INT, b: INT>", "b INT is not a name with a type, or is listed twice", "a"),
        ("a INT NOT NULL", "a INT NOT NULL is not a name with a type", "a"),
        ("a", None, None),
        ("a INT) AS SELECT (1", None, None),
        ("a NOTHING", None, None),
        ("_operation STRING", "_operation is the record's own", None),
        ("a INT; DROP TABLE x", None, None),
    ],
)
def test_columns_that_are_refused(columns: str, message: str | None, at: str | None) -> None:
    said, place = refused(columns, "SELECT a FROM record")
    assert message is None or said.startswith(message)
    if at is not None:
        assert columns[place:].startswith(at)


def test_types_by_any_of_their_names() -> None:
    found = parse_columns(
        "i INTEGER, l LONG, s string, d Decimal, n TIMESTAMP_NTZ, t timestamp, m MAP<STRING, ARRAY<DATE>>"
    )
    assert list(found.values()) == [
        "int", "bigint", "string", ("decimal", 10, 0), "timestamp_ntz", "timestamp", ("map", ("array", "date"))
    ]  # fmt: skip


def test_every_function_of_spark_is_allowed_or_refused(spark: SparkSession) -> None:
    """A new version of Spark adds functions: each is classified."""
    names = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    known = {name for name in names if name.isidentifier()}
    assert known - ALLOWED - REFUSED == {"case"}
    assert not ALLOWED & REFUSED


def test_the_check_starts_neither_spark_nor_arrow() -> None:
    code = (
        "import sys\n"
        "from conduit_dagster.sdk.processor import ProcessorContext\n"
        "from conduit_dagster.expressions import Clock\n"
        "from conduit_dagster.processors.sql import Sql, SqlSettings\n"
        "s = SqlSettings(columns='a DECIMAL(3, 1)', query='SELECT a + 1 AS b FROM record')\n"
        "Sql(s, ProcessorContext('p', 'p:x', Clock()))\n"
        "print([m for m in ('pyspark', 'pyarrow') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
