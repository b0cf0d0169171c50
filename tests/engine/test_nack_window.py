"""The nack window against the simplest model: count the nacks among the last results, one by one.

A task reports as many nacks as the window needs, however many there are.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from conduit_dagster.engine.resolve import NackWindow
from conduit_dagster.engine.stage_job import NackRows

results = st.lists(st.booleans(), max_size=60)


def plain(size: int, threshold: int, before: list[bool], now: list[bool]) -> tuple[int | None, list[bool]]:
    """Conduit's ring (CONDUIT_FACTS, 3): a nack is accepted while at most ``threshold`` of the window are nacks."""
    window = before[-size:] if size else []
    for index, nacked in enumerate(now):
        after = [*window, nacked][-size:]
        if nacked and size and sum(after) > threshold:
            return index, window
        window = after if size else []
    return None, window


def text(bits: list[bool]) -> str:
    return "".join("1" if bit else "0" for bit in bits)


@given(st.integers(0, 8), st.integers(0, 7), results, results)
def test_agrees_with_looking_at_each_result(size: int, threshold: int, first: list[bool], second: list[bool]) -> None:
    """Over two steps: the second begins with the state of the first, also after a refused nack."""
    threshold = min(threshold, max(0, size - 1))
    window, state, seen = NackWindow(size, threshold), "", list[bool]()
    for step in (first, second):
        verdict = window.resolve(state, len(step), [i for i, nacked in enumerate(step) if nacked])
        exceeded, seen = plain(size if threshold else min(size, 1), threshold, seen, step)
        assert verdict.exceeded == exceeded
        assert verdict.state.lstrip("0") == text(seen).lstrip("0")
        state = verdict.state


def test_case_a13() -> None:
    verdict = NackWindow(5, 2).resolve("", 9, [1, 3, 5])
    assert verdict.exceeded == 5
    assert verdict.state == "01010"


@given(st.integers(1, 8), st.integers(0, 7), st.lists(st.booleans(), max_size=80), st.text("01", max_size=8))
def test_the_rows_are_enough_to_decide(size: int, threshold: int, results: list[bool], before: str) -> None:
    """The window cuts at the same record whether it sees every nack or only those that got a row."""
    threshold = min(threshold, size - 1)
    nacks = [i for i, nacked in enumerate(results) if nacked]
    rows = NackRows(size, threshold)
    reported = [i for i in nacks if rows.wants(i)]
    window, state = NackWindow(size, threshold), before[-size:] if threshold else ""
    exact, known = window.resolve(state, len(results), nacks), window.resolve(state, len(results), reported)
    assert known.exceeded == exact.exceeded
    assert known.state == exact.state


def test_rows_stop_where_the_split_alone_exceeds_the_threshold() -> None:
    rows = NackRows(5, 2)
    assert [rows.wants(i) for i in (0, 10, 11, 12, 13, 1000)] == [True, True, True, True, False, False]


def test_without_a_window_a_few_are_reported() -> None:
    rows = NackRows(0, 0)
    assert sum(rows.wants(i) for i in range(30_000)) == 20
