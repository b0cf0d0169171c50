"""Codes of several processors in one loop, over payloads and over records."""

from __future__ import annotations

from typing import Any

import pytest

from conduit_dagster.payload_code import DROPPING, NoFitError, PayloadChain, PayloadCode, Unfit, conditional
from conduit_dagster.record import Record

DOUBLE = PayloadCode("value = after['n'] * two\nafter['n'] = value", {"two": 2})
ADD = PayloadCode("value = three\nafter['n'] += value", {"three": 3})


def never(code: int) -> None:
    raise AssertionError(code)


def over_payloads(chain: PayloadChain, payloads: list[Any]) -> list[Any]:
    changed: list[Any] = []
    assert chain.over_payloads(iter(payloads), never, changed.append) is None
    return changed


def test_each_code_sees_what_the_one_before_made() -> None:
    chain = PayloadChain([DOUBLE, ADD])
    assert over_payloads(chain, [{"n": 1}, {"n": 5}]) == [{"n": 5}, {"n": 13}]
    records = [Record(i, {}, {"n": i}) for i in range(3)]
    assert chain.over_records(iter(records), never) is None
    assert [record.after for record in records] == [{"n": 3}, {"n": 5}, {"n": 7}]


def test_a_code_may_replace_the_payload() -> None:
    replaced = PayloadCode("after = {'was': after}", {})
    assert over_payloads(PayloadChain([replaced, replaced]), [b"x"]) == [{"was": {"was": b"x"}}]
    record = Record(0, {}, b"x")
    PayloadChain([replaced]).over_records(iter([record]), never)
    assert record.after == {"was": b"x"}


def test_equal_names_of_two_codes_are_two_names() -> None:
    first = PayloadCode("mine = value\nafter[mine] = 1", {"value": "a"})
    second = PayloadCode("after[value] = 2\nafter['seen'] = [mine for mine in after]", {"value": "b"})
    assert over_payloads(PayloadChain([first, second]), [{}]) == [{"a": 1, "b": 2, "seen": ["a", "b"]}]


def test_a_code_reaches_neither_anothers_names_nor_a_built_in() -> None:
    for name in ("two", "two_0", "record", "rest", "open", "__builtins__"):
        chain = PayloadChain([DOUBLE, PayloadCode(f"after['leak'] = {name}", {})])
        changed: list[Any] = []
        assert chain.over_payloads(iter([{"n": 1}]), never, changed.append) == Unfit(1, {"n": 2})
        assert changed == []


def test_what_raised_is_told_with_the_payload_so_far() -> None:
    names = {"limit": 4, "NoFitError": NoFitError}
    picky = PayloadCode("if after['n'] > limit:\n    raise NoFitError\nafter['ok'] = True", names)
    chain, changed = PayloadChain([DOUBLE, picky, ADD]), list[Any]()
    rest = iter([{"n": 1}, {"n": 3}, b"raw", {"n": 2}, {"n": 9}])
    found = []
    while (unfit := chain.over_payloads(rest, never, changed.append)) is not None:
        found.append(unfit)
    assert found == [Unfit(1, {"n": 6}), Unfit(0, b"raw"), Unfit(1, {"n": 18})]
    assert changed == [{"n": 5, "ok": True}, {"n": 7, "ok": True}]


def test_a_record_is_given_back_as_changed_so_far() -> None:
    replaced = PayloadCode("after = {**after}", {})
    record = Record(0, {}, {"n": 1})
    chain = PayloadChain([replaced, DOUBLE, PayloadCode("nothing", {})])
    assert chain.over_records(iter([record]), never) == Unfit(2, {"n": 2})
    assert record.after == {"n": 2}


def test_a_record_is_dropped_in_the_middle() -> None:
    even = conditional(PayloadCode("after['n'] % two", {"two": 2}), DROPPING)
    chain, dropped, changed = PayloadChain([ADD, even, DOUBLE]), list[int](), list[Any]()
    assert chain.over_payloads(iter([{"n": n} for n in range(4)]), dropped.append, changed.append) is None
    assert (dropped, changed) == ([1, 1], [{"n": 8}, {"n": 12}])
    records = [Record(n, {}, {"n": n}) for n in range(2)]
    assert chain.over_records(iter(records), dropped.append) is None
    assert (dropped, [record.after for record in records]) == ([1, 1, 1], [{"n": 3}, {"n": 8}])


@pytest.mark.parametrize(("otherwise", "expected"), [(False, [{"n": 2}, {"n": 2}]), (True, [{"n": 1}, {"n": 4}])])
def test_a_condition_and_its_code_share_no_name(otherwise: bool, expected: list[Any]) -> None:
    condition = PayloadCode("(value := after['n'] * two) < three", {"two": 1, "three": 2})
    chain = PayloadChain([conditional(condition, DOUBLE, otherwise=otherwise)])
    assert over_payloads(chain, [{"n": 1}, {"n": 2}]) == expected


def test_text_with_line_ends_and_braces_stays_as_it_is() -> None:
    text = "a\nb\u2028c\x0bd{body}'\"\\"
    chain = PayloadChain([PayloadCode(f"after[{text!r}] = {text!r}", {}), PayloadCode("missing", {})])
    changed: list[Any] = []
    assert chain.over_payloads(iter([{}]), never, changed.append) == Unfit(1, {text: text})
