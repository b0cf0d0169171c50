"""``sql``: what Spark computes of one record, and which record is a nack."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conduit_dagster.builtin_plugins import PROCESSORS
from conduit_dagster.record import Record
from conduit_dagster.sdk import DROP, Nack, Processor, ProcessorContext
from conduit_dagster.spark.sql.query import open_with

Run = Callable[..., list[Any]]
BIG = 10**37


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> None:
    open_with(lambda: spark)


def made(columns: str, query: str) -> Processor:
    kind = PROCESSORS.find("sql", {})
    assert kind is not None
    from conduit_dagster.expressions import Clock

    settings = kind.Settings.model_validate({"columns": columns, "query": query})
    return kind(settings, ProcessorContext("p", "p:x", Clock(0)))


def ran(columns: str, query: str, *documents: Any) -> list[Any]:
    """One block; a document or ``DROP`` or the code of a nack for each."""
    records = [Record(i, {"m": "1"}, document) for i, document in enumerate(documents)]
    results = made(columns, query).process_block(records)
    return [r.after if isinstance(r, Record) else r.code if isinstance(r, Nack) else r for r in results]


@pytest.mark.parametrize(
    ("kind", "fits", "not_"),
    [
        ("BIGINT", [0, -(2**63), 2**63 - 1, None], [2**63, 1.0, "1", True, [1], 10**40]),
        ("TINYINT", [127, -128], [128, -129]),
        ("DOUBLE", [1.5, 1, 2**53, None], [2**53 + 1, "1", True, 10**400, float("nan"), float("inf")]),
        ("BOOLEAN", [True, None], [1, "true"]),
        ("STRING", ["", "ü", None], [1, {"a": 1}, "\ud800", True]),
        ("DECIMAL(4, 2)", [1, 99.99, -0.5, 0, None, 0.0], [100, 1.234, "1", True, float("inf"), 1e300]),
        ("DECIMAL(38, 0)", [10**38 - 1, 1e22], [10**38, 0.5]),
        ("DATE", ["2024-02-29", None], ["2023-02-29", "2024-2-9", 20240229, "2024-01-01T00:00:00"]),
        ("TIMESTAMP", ["2024-01-01T00:00:00Z", "2024-01-01 00:00:00.123456+02:00"], ["2024-01-01T00:00:00", "x",
          "2024-01-01T00:00:00.1234567Z", "0001-01-01T00:00:00+14:00"]),
        ("TIMESTAMP_NTZ", ["2024-01-01T00:00:00"], ["2024-01-01T00:00:00Z"]),
        ("ARRAY<INT>", [[], [1, None], None], [[1, "2"], {"0": 1}, "[]"]),
        ("MAP<STRING, INT>", [{}, {"a": 1, "": None}], [{"a": "1"}, [], {"\ud800": 1}]),
        ("STRUCT<a: STRUCT<`b c`: INT>>", [{}, {"a": None}, {"a": {"b c": 1, "x": []}}], [{"a": {"b c": "1"}}, 1]),
    ],
)  # fmt: skip
def test_what_fits_a_type(kind: str, fits: list[Any], not_: list[Any]) -> None:
    """It passes through Spark and back; a value that does not fit is that record's nack, among the others."""
    found = ran(f"v {kind}", "SELECT v, v IS NULL AS gone FROM record", *({"v": v} for v in [*not_, *fits, *not_]))
    bad = ["sql.does_not_fit"] * len(not_)
    assert found == [*bad, *({"v": v, "gone": v is None} for v in fits), *bad]


def test_the_fields_of_a_struct_are_named_as_its_columns() -> None:
    query = "SELECT struct(r.`a b`, n, s.x, n AS m) AS x, to_json(struct(n)) AS y, struct(s.*) AS z FROM record r"
    found = ran("n INT, `a b` INT, s STRUCT<x: INT>", query, {"n": 1, "a b": 2, "s": {"x": 3}})
    assert found == [{"x": {"a b": 2, "n": 1, "x": 3, "m": 1}, "y": '{"n":1}', "z": {"x": 3}}]


def test_a_misfit_is_named_without_its_value() -> None:
    processor = made("who STRUCT<tags: ARRAY<INT>>", "SELECT who.tags AS t FROM record")
    [nack] = processor.process_block([Record(1, {}, {"who": {"tags": [1, "secret"]}})])
    assert isinstance(nack, Nack)
    assert nack.message == "the field who.tags[1] is not INT, but text"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("CAST(1.10 AS DECIMAL(20, 2))", 1.1),
        ("CAST(12345678901234567890123456789 AS DECIMAL(38, 0))", 12345678901234567890123456789),
        ("CAST('12345678901234567890.12' AS DECIMAL(38, 2))", "sql.not_json"),
        ("array(struct(CAST(0.1 AS DECIMAL(38, 20)) AS d))", [{"d": 0.1}]),
        ("map('k', CAST('0.12345678901234567891' AS DECIMAL(38, 20)))", "sql.not_json"),
        ("double('NaN')", "sql.not_json"),
        ("array(-double('Infinity'))", "sql.not_json"),
        ("TIMESTAMP '2024-01-01 02:00:00.000001+02:00'", "2024-01-01T00:00:00.000001Z"),
        ("TIMESTAMP_NTZ '2024-01-01 02:00:00'", "2024-01-01T02:00:00.000000"),
        ("DATE '2024-02-29'", "2024-02-29"),
        ("X'00ff'", base64.b64encode(b"\x00\xff").decode()),
        ("NULL", None),
        ("named_struct('b', 1, 'a', NULL)", {"b": 1, "a": None}),
        ("map('x y', array(1, NULL))", {"x y": [1, None]}),
        ("'\"\\\\\u2028 \U0001f600'", '"\\\u2028 \U0001f600'),
        ("9223372036854775807", 2**63 - 1),
        ("1e300D * 1e8D", 1e308),
        ("0.1D + 0.2D", 0.1 + 0.2),
        ("extract(YEAR FROM DATE '2024-02-29')", 2024),
        ("filter(array(1, 2, 3), x -> x > v)", [2, 3]),
        ("CASE WHEN v = 1 THEN 'one' ELSE 'more' END", "one"),
        ("v IS DISTINCT FROM 1", False),
        ("v BETWEEN 0 AND 2 AND v NOT IN (5, 6)", True),
        ("to_json(from_json('{\"a\": 1}', 'a INT'))", '{"a":1}'),
    ],
)
def test_what_a_result_becomes(expression: str, value: Any) -> None:
    [found] = ran("v BIGINT", f"SELECT {expression} AS r FROM record", {"v": 1})
    assert found == (value if value == "sql.not_json" else {"r": value})


@pytest.mark.parametrize(
    "expression",
    [
        "1 / v", "9223372036854775807 + v + 1", "CAST(s AS INT)", "element_at(array(1), v + 5)", "array(1)[v + 5]",
        "to_date(s)", "raise_error(s)", "assert_true(v > 0)", "CAST(1e30D + v AS INT)", "make_date(2024, 13, v + 1)",
        "map('a', 1 / v, 'b', 2)", "to_timestamp(s, 'yyyy')",
        "1 / v + 1 / v", "CAST(v + 1000 AS TINYINT)", "date_add(DATE '2024-01-01', CAST(s AS INT))",
    ],
)  # fmt: skip
def test_an_error_is_the_records_own(expression: str) -> None:
    """Whatever Spark raises for one record, its neighbours continue; also if two columns share the failing part."""
    query = f"SELECT v, {expression} AS r, ({expression}) IS NULL AS n FROM record"
    bad = {"v": 0, "s": "x"}
    harmless = f"SELECT v, CASE WHEN v = 0 THEN {expression} END AS r, v + 1 AS w FROM record"
    assert ran("v INT, s STRING", query, bad, bad) == ["sql.failed", "sql.failed"]
    assert ran("v INT, s STRING", harmless, {"v": 1}, bad, {"v": 2}) == [
        {"v": 1, "r": None, "w": 2},
        "sql.failed",
        {"v": 2, "r": None, "w": 3},
    ]


def test_a_nack_names_the_part_that_raises() -> None:
    processor = made("a INT, b INT", "SELECT a + 1 AS n, a / b AS ratio, b AS kept FROM record WHERE 10 / a > 0")
    records = [Record(i, {}, {"a": a, "b": b}) for i, (a, b) in enumerate([(1, 0), (0, 1), (1, 1)])]
    ratio, where, fine = processor.process_block(records)
    assert isinstance(ratio, Nack) and ratio.message.startswith("Spark raises an error for a / b AS ratio (")
    assert isinstance(where, Nack) and where.message.startswith("Spark raises an error for WHERE 10 / a > 0 (")
    assert isinstance(fine, Record) and fine.after == {"n": 2, "ratio": 1.0, "kept": 1}


def test_where_comes_before_what_is_selected() -> None:
    found = ran("a INT", "SELECT 1 / a AS r FROM record WHERE a <> 0", {"a": 0}, {"a": 2}, {})
    assert found == [DROP, {"r": 0.5}, DROP]


def test_names_of_any_kind() -> None:
    names = ["a b", "a.b", 'q"q', "b`t", "ü😀", "select", "A", "a", "", "q1.c0", "'"]
    document = {name: i for i, name in enumerate(names)}
    quoted = ["`" + name.replace("`", "``") + "`" for name in names if name]
    columns = ", ".join(f"{name} INT" for name in quoted)
    query = "SELECT " + ", ".join(f"{name} + 1 AS {name}" for name in quoted) + " FROM record"
    assert ran(columns, query, document) == [{name: i + 1 for name, i in document.items() if name}]


def test_names_inside_a_field_keep_their_case() -> None:
    columns = "who STRUCT<a: INT, A: INT, `x.y z`: STRING>"
    query = "SELECT who.a - who.A AS d, who.`x.y z` AS z, record.who.a AS r, who['A'] AS i FROM record"
    assert ran(columns, query, {"who": {"a": 1, "A": 2, "x.y z": "q"}}) == [{"d": -1, "z": "q", "r": 1, "i": 2}]


def test_what_is_selected_as_it_is_is_untouched() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    document = {"big": 10**50, "t": "2024-01-01T00:00:00+05:00", "deep": deep, "f": 1e-320, "n": None}
    query = "SELECT *, t AS u, length(t) AS l FROM record r"
    assert ran("t STRING", query, document) == [{**document, "u": document["t"], "l": 25}]
    assert ran("t TIMESTAMP", "SELECT t FROM record", document) == [{"t": document["t"]}]
    assert ran("t STRING", "SELECT * EXCEPT (t, deep), lower(t) AS n FROM record", document) == [
        {"big": 10**50, "f": 1e-320, "n": "2024-01-01t00:00:00+05:00"}
    ]


def test_a_document_selected_twice_is_two() -> None:
    [found] = ran("a ARRAY<INT>", "SELECT *, a AS b FROM record", {"a": [1]})
    found["a"].append(2)
    assert found == {"a": [1, 2], "b": [1]}


def test_parts_of_the_record_besides_its_fields() -> None:
    query = "SELECT _metadata['m'] AS m, _operation, concat(_position, '!') AS p, _metadata FROM record"
    assert ran("", query, {}) == [{"m": "1", "_operation": "create", "p": "0!", "_metadata": {"m": "1"}}]


def test_records_without_a_document() -> None:
    records = [
        Record(1, {}, None, operation="delete"),
        Record(2, {}, None),
        Record(3, {}, b"\x00\xff"),
        Record(4, {}, {"a": 1}, operation="delete"),
    ]
    results = made("a INT", "SELECT a + 1 AS b FROM record").process_block(records)
    codes = [r.code if isinstance(r, Nack) else r.after if isinstance(r, Record) else r for r in results]
    assert codes == [None, "sql.no_document", "sql.no_document", {"b": 2}]
    assert results[0] is records[0]


def test_what_the_session_is_set_to_changes_nothing(spark: SparkSession) -> None:
    """A query means the same with ANSI rules or without, and in any time zone."""
    columns, query = (
        "s STRING, a INT, A INT",
        "SELECT CAST(s AS INT) AS i, a - A AS d, hour(timestamp(s)) AS h FROM record",
    )
    documents = (
        {"s": "x", "a": 1, "A": 2},
        {"s": "2024-01-01T00:00:00Z", "a": 1},
        {"s": None, "a": 2**31 - 1, "A": -1},
    )
    wanted = ["sql.failed", "sql.failed", "sql.failed"]
    odd = {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "Asia/Tokyo"}
    before = {key: spark.conf.get(key) for key in odd}
    assert ran(columns, query, *documents) == wanted
    for key, value in odd.items():
        spark.conf.set(key, value)
    try:
        assert ran(columns, query, *documents) == wanted
        assert ran("s STRING", "SELECT hour(timestamp(s)) AS h FROM record", {"s": "2024-01-01T00:00:00Z"}) == [
            {"h": 0}
        ]
        assert {key: spark.conf.get(key) for key in odd} == odd
    finally:
        for key, value in before.items():
            assert value is not None
            spark.conf.set(key, value)


# -- beside a model -----------------------------------------------------------------------------------------------

_numbers = st.one_of(st.integers(), st.integers(-5, 5), st.integers(2**63 - 3, 2**63 + 3), st.floats(), st.none())
_texts = st.one_of(st.text(max_size=5), st.sampled_from(["", "12", "-7", " 3", "x", "\x00", "é"]), st.none())
_odd = st.sampled_from([b"raw", None, {}, {"a": {"b": []}}, {"a": True}, {"s": 1}])
_documents = st.one_of(
    st.fixed_dictionaries({}, optional={"a": _numbers, "b": _numbers, "s": _texts, "x y": st.integers()}), _odd
)


def _model(document: Any) -> Any:
    """``SELECT *, a + b AS sum, a div b AS quotient, upper(s) AS up … WHERE a IS NULL OR a <> 3`` as Python."""
    if not isinstance(document, dict):
        return "sql.no_document"
    a, b, s = (document.get(name) for name in "abs")
    if any(v is not None and (type(v) is not int or not -(2**63) <= v < 2**63) for v in (a, b)):
        return "sql.does_not_fit"
    if s is not None and (type(s) is not str or any(0xD800 <= ord(c) < 0xE000 for c in s)):
        return "sql.does_not_fit"
    if a == 3:
        return DROP
    total = None if a is None or b is None else a + b
    if a is not None and b == 0:
        return "sql.failed"
    quotient = None if a is None or b is None else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if any(v is not None and not -(2**63) <= v < 2**63 for v in (total, quotient)):
        return "sql.failed"
    return {**document, "sum": total, "quotient": quotient, "n": None if s is None else len(s)}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_documents, min_size=1, max_size=60))
def test_beside_a_model_in_python(documents: list[Any]) -> None:
    query = """SELECT *, a + b AS sum, a div b AS quotient, length(s) AS n
               FROM record WHERE a IS NULL OR a <> 3 -- a comment"""
    wanted = [_model(document) for document in documents]
    found = ran("a BIGINT, b BIGINT, s STRING", query, *documents)
    # NaN among fields that are kept is not a number that equals itself
    assert [repr(one) for one in found] == [repr(one) for one in wanted]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3), max_leaves=5), min_size=1, max_size=30))  # fmt: skip
def test_text_and_lists_come_back_as_they_went(values: list[Any]) -> None:
    documents = [{"v": [json.dumps(v, ensure_ascii=False)], "s": {"t": str(v)}} for v in values]
    query = "SELECT array_distinct(v) AS v, named_struct('t', s.t) AS s FROM record"
    assert ran("v ARRAY<STRING>, s STRUCT<t: STRING>", query, *documents) == documents
