"""When a pipeline is restarted: the worked examples of reference 2, to the second, and what always holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_dagster.config.delivery import Recovery
from conduit_dagster.recovery.policy import GiveUp, Policy, RestartHistory, Wait, decide, settled

SECOND = 1_000_000_000
START = 1_780_000_000 * SECOND


def at(clock: str) -> int:
    """A time of day, such as 15:10 or 15:10:01, in nanoseconds since the epoch."""
    hours, minutes, *seconds = (int(part) for part in clock.split(":"))
    day = datetime(2026, 7, 1, tzinfo=UTC)
    return int((day + timedelta(hours=hours, minutes=minutes, seconds=sum(seconds))).timestamp()) * SECOND


def waits(policy: Policy, past: RestartHistory, now_ns: int) -> Wait:
    """The wait after an error now."""
    decision = decide(policy, past, now_ns, _never)
    assert isinstance(decision, Wait)
    return decision


def gives_up(policy: Policy, past: RestartHistory, now_ns: int) -> GiveUp:
    decision = decide(policy, past, now_ns, _never)
    assert isinstance(decision, GiveUp)
    return decision


def _never() -> float:
    raise AssertionError("nobody asked for jitter")


def always_failing(policy: Policy, count: int) -> list[Wait]:
    """The waits of a pipeline that fails as soon as it is restarted."""
    found: list[Wait] = []
    past, now = RestartHistory(), START
    for _ in range(count):
        found.append(waits(policy, past, now))
        past, now = found[-1].past, found[-1].at_ns
    return found


def test_b01_a_permanent_error_with_max_delay_10s() -> None:
    """Reference 2, example 1: 1, 2, 4, 8, 10, 10 seconds, exactly."""
    found = always_failing(Policy(max_delay=10), 7)
    assert [wait.delay for wait in found] == [1, 2, 4, 8, 10, 10, 10]
    assert [wait.attempt for wait in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [(wait.at_ns - START) // SECOND for wait in found] == [1, 3, 7, 15, 25, 35, 45]


def test_the_defaults() -> None:
    """Reference 2, Configuration: from 1 s to 10 m, without end."""
    delays = [wait.delay for wait in always_failing(Policy(), 12)]
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    assert Policy() == Policy.of(Recovery(), Recovery())


TWICE = Policy(max_retries=2, window=600)


def test_b02_the_third_error_within_the_window() -> None:
    """Reference 2, scenario 1."""
    first = waits(TWICE, RestartHistory(), at("15:10"))
    assert (first.attempt, first.delay, first.at_ns) == (1, 1, at("15:10:01"))
    second = waits(TWICE, first.past, at("15:11"))
    assert (second.attempt, second.delay, second.at_ns) == (2, 2, at("15:11:02"))
    spent = gives_up(TWICE, second.past, at("15:15"))
    assert spent.attempt == 2
    assert spent.reason == (
        "it was restarted 2 times within 10m and failed again (max-retries: 2, max-retries-window: 10m)"
    )


def test_b03_a_later_error_after_the_window() -> None:
    """Reference 2, scenario 2: at 15:20:01 the first restart no longer counts, at 15:35 neither of them."""
    first = waits(TWICE, RestartHistory(), at("15:10"))
    second = waits(TWICE, first.past, at("15:11"))
    assert gives_up(TWICE, second.past, at("15:20")).attempt == 2
    assert waits(TWICE, second.past, at("15:20:01")).attempt == 3
    third = waits(TWICE, second.past, at("15:35"))
    assert (third.attempt, third.delay, third.at_ns) == (1, 1, at("15:35:01"))
    assert third.past == RestartHistory(1, (at("15:35:01"),))


def test_b04_no_retries() -> None:
    spent = gives_up(Policy(max_retries=0), RestartHistory(), START)
    assert spent == GiveUp(0, "recovery is switched off (max-retries: 0)")


def test_b05_unlimited_retries() -> None:
    """The ten thousandth restart waits as well, without an overflow, and the stored history does not grow."""
    last = always_failing(Policy(), 10_000)[-1]
    assert (last.attempt, last.delay) == (10_000, 600)
    assert last.past == RestartHistory(10_000, (last.at_ns,))


def test_one_window_without_an_error_begins_anew() -> None:
    """Measured from when the last restart fell due, not from the error before it."""
    third = always_failing(Policy(), 3)[-1]
    almost, full = third.at_ns + 300 * SECOND - 1, third.at_ns + 300 * SECOND
    assert not settled(Policy(), third.past, almost)
    assert waits(Policy(), third.past, almost).attempt == 4
    assert settled(Policy(), third.past, full)
    assert waits(Policy(), third.past, full).attempt == 1


def test_a_pipeline_that_was_never_restarted_is_settled() -> None:
    assert settled(Policy(), RestartHistory(), START)


def test_a_pending_restart_is_not_settled() -> None:
    assert not settled(Policy(), RestartHistory(1, (START + 1,)), START)


def test_a_clock_set_back_neither_hurries_nor_blocks() -> None:
    """A restart in the future counts as now: it stops counting after one window, not after a year."""
    year = 365 * 86_400 * SECOND
    second = always_failing(TWICE, 2)[-1]
    back = START - year
    assert gives_up(TWICE, second.past, back).attempt == 2
    third = waits(Policy(max_retries=3, window=600), second.past, back)
    assert (third.attempt, third.delay, third.at_ns) == (3, 4, back + 4 * SECOND)
    assert third.past.restarts == (back, back, back + 4 * SECOND)
    assert waits(Policy(max_retries=3, window=600), third.past, back + 605 * SECOND).attempt == 1


def test_a_factor_of_one_keeps_the_wait() -> None:
    assert {wait.delay for wait in always_failing(Policy(min_delay=3, factor=1), 5)} == {3}


@pytest.mark.parametrize(("spread", "delay"), [(0.0, 1.0), (0.5, 4.5), (1.0, 8.0)])
def test_jitter_is_uniform_between_min_delay_and_the_delay(spread: float, delay: float) -> None:
    past = always_failing(Policy(), 3)[-1].past
    found = decide(Policy(jitter=True), past, past.restarts[-1], lambda: spread)
    assert isinstance(found, Wait)
    assert found.delay == delay


def test_the_reason_says_odd_windows_too() -> None:
    policy = Policy(max_retries=1, window=5402.5)
    assert gives_up(policy, RestartHistory(1, (START,)), START).reason.startswith(
        "it was restarted once within 1h30m2.5s and"
    )


def test_a_pipelines_own_section_goes_over_the_projects() -> None:
    own, base = Recovery(max_retries=3, backoff_factor=0), Recovery(min_delay=2, max_retries=9, jitter=True)
    assert Policy.of(own, base) == Policy(2, 600, 2, 3, 300, True)


policies = st.builds(
    Policy,
    min_delay=st.floats(0.001, 60),
    max_delay=st.floats(60, 7200),
    factor=st.floats(1, 1e6),
    max_retries=st.integers(0, 5),
    window=st.floats(0.01, 3600),
    jitter=st.booleans(),
)
# how long a pipeline runs after a restart fell due; a clock that is set back makes it negative
runs = st.lists(st.integers(0, 4000 * SECOND) | st.integers(0, SECOND), max_size=60)


def history(policy: Policy, steps: list[int], spread: float) -> list[tuple[int, Wait]]:
    """Restarts with the times of their errors; after giving up somebody waits for one window and it continues."""
    found: list[tuple[int, Wait]] = []
    past, now = RestartHistory(), START
    for step in steps:
        now += step
        decision = decide(policy, past, now, lambda: spread)
        if isinstance(decision, Wait):
            found.append((now, decision))
            past, now = decision.past, decision.at_ns
        else:
            now += round(policy.window * SECOND)
    return found


@given(policies, runs, st.floats(0, 1))
def test_never_more_than_max_retries_in_any_window(policy: Policy, steps: list[int], spread: float) -> None:
    due = [wait.at_ns for _, wait in history(policy, steps, spread)]
    window = round(policy.window * SECOND)
    assert all(sum(first <= other < first + window for other in due) <= policy.max_retries for first in due)


@given(policies, runs, st.floats(0, 1))
def test_delays_stay_within_their_limits(policy: Policy, steps: list[int], spread: float) -> None:
    for now, wait in history(policy, steps, spread):
        assert policy.min_delay <= wait.delay <= policy.max_delay
        assert wait.at_ns - now == round(wait.delay * SECOND)
        assert len(wait.past.restarts) <= max(1, policy.max_retries)
        assert list(wait.past.restarts) == sorted(wait.past.restarts)


@given(policies, runs)
def test_delays_grow_until_they_begin_anew(policy: Policy, steps: list[int]) -> None:
    policy = Policy(policy.min_delay, policy.max_delay, policy.factor, -1, policy.window)
    before: tuple[int, Wait] | None = None
    for now, wait in history(policy, steps, 0.0):
        if before is None or now - before[1].at_ns >= round(policy.window * SECOND):
            assert (wait.attempt, wait.delay) == (1, policy.min_delay)
        else:
            assert wait.attempt == before[1].attempt + 1
            assert wait.delay >= before[1].delay
        before = now, wait


@given(policies, st.lists(st.integers(-(10**20), 10**19), max_size=20))
def test_no_clock_makes_a_wait_negative_or_endless(policy: Policy, jumps: list[int]) -> None:
    """The clock may be set to anything, also backwards: later waits keep their limits."""
    past, now = RestartHistory(), START
    for jump in jumps:
        now += jump
        decision = decide(policy, past, now, lambda: 1.0)
        if isinstance(decision, Wait):
            assert 0 < decision.at_ns - now <= policy.max_delay * SECOND + 1
            past = decision.past
