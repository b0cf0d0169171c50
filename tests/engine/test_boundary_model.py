"""Steps of any size through the nack window: cut, resumed and cut again, against one pass over all records."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_dagster.engine.resolve import NackWindow, cut, resolve
from conduit_dagster.engine.stage_job import Ledger, NackRow
from conduit_dagster.state.steps import Plan, Range, SourceCount


def brute_force(nacks: list[bool], size: int, threshold: int) -> int | None:
    """The first record whose nack is one too many among the last ``size`` results."""
    for i, is_nack in enumerate(nacks):
        span = size if threshold else 1
        if is_nack and size and sum(nacks[max(0, i + 1 - span) : i + 1]) > threshold:
            return i
    return None


def ledger(nacks: list[bool], start: int, end: int) -> Ledger:
    rows = [NackRow("in", i - start, str(i), "n", "c", "m", False, before=i) for i in range(start, end) if nacks[i]]
    return Ledger(0, {"in": SourceCount(end - start, 0, len(rows))}, rows)


@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(0, 6),
    st.integers(0, 5),
    st.lists(st.integers(1, 20), min_size=1, max_size=10),
)
@settings(max_examples=500, deadline=None)
def test_the_boundary_does_not_depend_on_the_steps(
    nacks: list[bool], size: int, threshold: int, steps: list[int]
) -> None:
    """For any step sizes everything before the same record is handled, and it is refused."""
    threshold = min(threshold, max(0, size - 1))
    window, state, position, refused = NackWindow(size, threshold), "", 0, None
    turn = 0
    while position < len(nacks) and refused is None:
        end = min(len(nacks), position + steps[turn % len(steps)])
        turn += 1
        plan: Plan | None = Plan(turn, 0, [Range("in", 1, position, end, position)])
        while plan is not None:
            span = plan.ranges[0]
            resolution = resolve(plan, [ledger(nacks, span.start, span.end)], window, state)
            if resolution.refused is None:
                position, state = span.end, resolution.window
                break
            refused = resolution.refused.before
            ranges = cut(plan, resolution.refused, lambda span, boundary: boundary)
            plan = Plan(turn, 0, ranges) if ranges else None
        if plan is None:
            break
    assert refused == brute_force(nacks, size, threshold)
    assert position == (len(nacks) if refused is None else refused)


def test_a_cut_before_the_first_record_leaves_nothing() -> None:
    plan = Plan(1, 0, [Range("in", 1, 0, 3, 0)])
    row = NackRow("in", 0, "0", "n", "c", "m", False, before=0)
    assert cut(plan, row, lambda span, boundary: boundary) == []
