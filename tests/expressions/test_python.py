"""Python expressions: the meaning of fields, functions and operators, and the position of findings."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from conduit_dagster.expressions import (
    Clock,
    Compiled,
    EvaluationError,
    ExpressionError,
    compile_condition,
    compile_expression,
)
from conduit_dagster.record import Record

CLOCK = Clock(1_700_000_000_120_000_000)
DOCUMENT = {
    "amount": 3,
    "price": 1.5,
    "name": "Ana",
    "IMDB Rating": None,
    "_id": "m1",
    "tags": ["a", "b"],
    "addr": {"zip": "10000", "geo": {"lat": 45.8}},
    "ok": True,
    "big": 12345678901234567890123,
    "items": [{"qty": 1}, {"qty": 5}, {}],
}
RECORD = Record(7, {"opencdc.collection": "orders"}, DOCUMENT, b"k1", {"amount": 2}, "update")


def value(text: str) -> Any:
    return compile_expression(text, CLOCK)(RECORD)


def refusal(text: str) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        compile_condition(text, CLOCK)
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("after.amount", 3),
        ("after['IMDB Rating']", None),
        ("after['_id']", "m1"),
        ("after.missing", None),
        ("after.missing.deeper['and'][0]", None),
        ("after.addr.geo.lat", 45.8),
        ("after.tags[1]", "b"),
        ("after.tags[-1]", "b"),
        ("after.tags[9]", None),
        ("after.tags[:1]", ["a"]),
        ("after.name[0:2]", "An"),
        ("before.amount", 2),
        ("metadata['opencdc.collection']", "orders"),
        ("metadata.nope", None),
        ("operation", "update"),
        ("position", "7"),
        ("key", b"k1"),
        ("str(key)", "k1"),
        ("after.items[1].qty", 5),
    ],
)
def test_a_field_is_an_attribute_or_an_item_and_a_missing_one_is_none(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("after.amount * 100 + 1", 301),
        ("after.big + 1", 12345678901234567890124),
        ("-after.amount // 2 % 5", 3),
        ("after.amount / 2", 1.5),
        ("'x' + after.name", "xAna"),
        ("after.tags + ['c']", ["a", "b", "c"]),
        ("(1, after.ok)", [1, True]),
        ("{'n': after.name, 'k': [1]}", {"n": "Ana", "k": [1]}),
        ("1 < after.amount <= 3", True),
        ("'a' in after.tags and 'zip' in after.addr", True),
        ("'yes' if after.ok else 'no'", "yes"),
        ("f'{after.name}-{after.amount}-{after.addr.geo}-{key}'", 'Ana-3-{"lat":45.8}-k1'),
        ("str(after.tags)", '["a","b"]'),
        ("str(None) + str(True) + str(1.0)", "NoneTrue1.0"),
        ("int('12') + int(3.7) + int(True)", 16),
        ("float('1.5')", 1.5),
        ("round(2.567, 1)", 2.6),
        ("min(3, 1) + max(after.amount, 9) + abs(-1)", 11),
        ("len(after.tags) + len('é')", 3),
        ("sum(x.qty or 0 for x in after.items)", 6),
        ("[t.upper() for t in after.tags if t != 'b']", ["A"]),
        ("any(x.qty == 5 for x in after.items)", True),
        ("all(c.isalpha() for c in after.name)", True),
        ("sorted(after.tags, reverse=True)", ["b", "a"]),
        ("max((x.qty or 0 for x in after.items), default=0)", 5),
        ("','.join(str(x) for x in [1, 2])", "1,2"),
        ("after.name.lower().replace('a', 'o').split('n')", ["o", "o"]),
        ("after.get('amount') + len(after.addr.keys()) + len(after.addr.values())", 7),
        ("regex('^A.a$', after.name) and not regex('x', after.name) and not regex('x', after.missing)", True),
        ("isinstance(after.name, str) and not isinstance(after.tags, (dict, bool))", True),
        ("hash('abc')", "ba7816bf8f01cfea"),
        ("hash({'b': 1, 'a': 2}) == hash({'a': 2, 'b': 1})", True),
        ("now()", "2023-11-14T22:13:20.12Z"),
        ("now_ns()", 1_700_000_000_120_000_000),
        ("(after.amount > 1\n and after.ok)", True),
        ("  after.amount > 1\n  and after.ok\n", True),
    ],
)
def test_values(text: str, expected: Any) -> None:
    """Python's meaning, except that raw data, lists and objects print as text and JSON."""
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("text", ["after.name", "after.amount", "after.tags", "not after.missing", "after.ok == True"])
def test_a_condition_is_a_real_bool(text: str) -> None:
    assert compile_condition(text, CLOCK)(RECORD) is True


def test_names_are_the_parts_it_looks_at() -> None:
    compiled: Compiled = compile_condition("after.x == metadata.k and any(key == 'a' for key2 in [1])", CLOCK)
    assert compiled.names == {"after", "metadata", "key"}
    assert compile_expression("1 + 1", CLOCK).names == frozenset()


def test_now_is_the_clock_of_the_moment() -> None:
    """The engine advances the clock between steps; a compiled expression sees it."""
    clock = Clock()
    compiled = compile_expression("now()", clock)
    assert compiled(RECORD) == "1970-01-01T00:00:00Z"
    clock.now_ns = 1_000_000_001
    assert compiled(RECORD) == "1970-01-01T00:00:01.000000001Z"


@pytest.mark.parametrize("text", ["after.x > 0", "after['x']", "after['x'].y"])
def test_raw_data_has_no_fields(text: str) -> None:
    with pytest.raises(EvaluationError, match=r"^after is raw, not a document: put json.decode before it"):
        compile_condition(text, CLOCK)(Record(1, {}, b"raw"))


@pytest.mark.parametrize(
    "text",
    [
        "key == '5'",
        "'5' != key",
        "key in ['5']",
        "'5' in key",
        "key < '6'",
        "0 < key",
        "[x for x in ['5'] if x == key]",
    ],
)
def test_raw_data_is_not_compared(text: str) -> None:
    """It equals no text: a condition would be the same for every record."""
    raw, none = Record(1, {}, None, b"5"), Record(1, {}, None, {"id": 5})
    with pytest.raises(EvaluationError, match=r"^key is raw data, which equals nothing: compare str\(key\)"):
        compile_expression(text, CLOCK)(raw)
    assert compile_condition("str(key) == '5'", CLOCK)(raw) is True
    assert compile_condition("key == {'id': 5}", CLOCK)(none) is True
    for empty in ("key is None", "key == None", "None == key"):
        assert compile_condition(empty, CLOCK)(raw) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("after.name.x", "text and has no field 'x'"),
        ("after.tags['x']", "no item 'x'"),
        ("after.missing.upper()", r"upper\(\) needs text, got nothing"),
        ("after.missing > 3", "NoneType"),
        ("int(after.missing)", "needs a number or text"),
        ("int(key)", r"got raw data: str\(\) makes text of it"),
        ("key.split(',')", r"got raw data: str\(\) makes text of it"),
        ("1 / 0", "division by zero"),
        ("float('nan')", "not a JSON number"),
        ("1e308 * 10.0", "not a JSON number"),
        ("','.join([1])", "list of texts"),
        ("regex('a', 1)", "needs text"),
        ("[x for x in 3]", "goes through a list"),
    ],
)
def test_what_does_not_fit_a_record_raises(text: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        value(text)
    assert not isinstance(caught.value, ExpressionError)


@pytest.mark.parametrize(
    ("text", "column", "fix"),
    [
        ("afer.x > 1", 0, "`after`"),
        ("1 + afer.x", 4, "`after`"),
        ("'éé' == afer", 8, "`after`"),
        ("  afer", 2, "`after`"),
        ("after.x and\n  befor.x", 14, "`before`"),
        ("after.x == true", 11, "`True`"),
        ("after.x == null", 11, "`None`"),
        ("amount > 1", 0, "after.amount"),
        ("lenn(after.x)", 0, "`len`"),
        ("after.x.uper()", 0, "`upper`"),
        ("1 == after._id", 5, "after['_id']"),
        ("len", 0, "len(…)"),
        ("after.class == 1", 6, "after['class']"),
        ("after.x = 1", 8, "`==`"),
        ("after.x !== 1", 10, "`!=`"),
        ("after.x <> 1", 8, "`!=`"),
        ("after.x && after.y", 9, "`and`"),
        ("after.x || after.y", 9, "`or`"),
        ("after.x and !after.y", 12, "`not`"),
        ("after.x ? 1 : 2", 8, "if condition else"),
        ("after.x == “a”", 11, "straight quotes"),
        (".Payload.After.x == 1", 0, "after.x"),
        ("after.x is 5", 11, "`==`"),
        ("1 < 2 is not after.x", 13, "`!=`"),
        ("'after.x > 1'", 0, "leave out the quotes"),
        ("''", 0, "leave out the quotes"),
        ("after.x >", 9, None),
        ("after.x >=", 10, None),
        ("after.x == f'{afer}'", 11, "`after`"),
        ("regex(after.p, after.x)", 6, "regex('^a'"),
        ("regex('(', after.x)", 6, None),
        ("isinstance(after.x, after)", 20, "one of str"),
        ("len(after.x, 1)", 0, None),
        ("sorted(after.x, key=1)", 16, None),
        ("[x for y in after.l]", 1, None),
        ("metadata['p'] == 0", 17, "write '0', or compare int(metadata['p'])"),
        ("3 <= metadata.p", 0, "int(metadata.p)"),
        ("metadata.p in ['1', True]", 20, "write 'true'"),
        ("position != 7", 12, "write '7'"),
        ("after.x or operation == 'insert'", 24, "create, update, delete, snapshot"),
        ("operation not in ('create', 'upsert')", 28, "create, update"),
        ("", 0, None),
    ],
)
def test_a_finding_has_its_column_and_a_fix(text: str, column: int, fix: str | None) -> None:
    """Columns count characters, not bytes, from the start of the text as written."""
    error = refusal(text)
    assert error.column == column
    assert fix is None or (error.fix is not None and fix in error.fix)


@pytest.mark.parametrize("text", ["after.a * 100", "regex('^x', after.b)", "[x + 1 for x in after.c]", "now()"])
def test_an_expression_over_the_payload_is_code_as_well(text: str) -> None:
    code = compile_expression(text, Clock(1)).code
    assert code is not None and not {"record", "__builtins__"} & set(code.names)


@pytest.mark.parametrize("text", ["key.id", "metadata.x", "operation", " + ".join(["after.a"] * 20)])
def test_one_that_reads_more_or_has_a_budget_is_called(text: str) -> None:
    assert compile_expression(text, Clock(1)).code is None


@pytest.mark.parametrize(
    "text", ["'date' in operation", "metadata.p is None", "operation == after.op", "metadata.p == '0'"]
)
def test_what_may_hold_for_a_record_is_no_finding(text: str) -> None:
    compile_condition(text, CLOCK)


def test_a_deep_one_is_called() -> None:
    """Written out it might need more of Python's stack than a task has left."""
    compiled = compile_expression("(" * 40 + "after.a" + " * 100)" * 40, Clock(1))
    assert compiled.code is None
    assert compiled(Record(0, {}, {"a": 1})) == 100**40


@pytest.mark.parametrize(
    "text", ["after.x is None", "None is not after.x", "after.x is True", "(after.x > 1) is False"]
)
def test_is_compares_with_what_there_is_one_of(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_condition(text, CLOCK)


@pytest.mark.parametrize("text", ["True", "1", "after.x or 'a'", "['a']"])
def test_other_conditions_of_one_value_are_taken(text: str) -> None:
    """Conduit takes ``1`` for true."""
    assert compile_condition(text, CLOCK)(Record("1", {}, {}))
