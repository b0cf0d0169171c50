"""A task reports as many nacks as the driver needs, however many there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from conduit_dagster.engine.resolve import NackWindow
from conduit_dagster.engine.stage_job import NackRows


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
