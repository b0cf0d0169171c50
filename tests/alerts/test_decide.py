"""What is worth an alert. No store, no network, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conduit_dagster.alerts.decide import (
    Alert,
    AlertDecision,
    AlertRules,
    PipelineStanding,
    ReportedState,
    decide,
    seen_of,
    unsent,
)

SECOND = 1_000_000_000
NOW = 1_000_000 * SECOND
RULES = AlertRules(growth=3, interval=60.0)


class Ticks:
    """The sensor's ticks, one after the other."""

    def __init__(self, rules: AlertRules = RULES, seen: ReportedState | None = None) -> None:
        self.rules, self.seen, self.now = rules, ReportedState() if seen is None else seen, NOW

    def tick(self, *rows: PipelineStanding, after: float = 30.0) -> list[Alert]:
        self.now += round(after * SECOND)
        decided = decide(self.seen, rows, self.rules, self.now)
        self.seen = decided.seen
        return decided.alerts

    def letters(self, *totals: int, after: float = 30.0) -> list[int]:
        """How many new ones each tick reports; 0 if none."""
        return [sum(alert.new for alert in self.tick(row(dead_letters=total), after=after)) for total in totals]


def row(pipeline: str = "p", status: str = "running", **more: Any) -> PipelineStanding:
    return PipelineStanding(pipeline, status, **{"outage": "r:1", **more})


def kinds(alerts: list[Alert]) -> list[tuple[str, str]]:
    return [(alert.kind, alert.standing.pipeline) for alert in alerts]


def test_an_outage_is_reported_once() -> None:
    ticks, down = Ticks(), row(status="degraded")
    assert kinds(ticks.tick(down, row("q"))) == [("degraded", "p")]
    assert ticks.tick(down, row("q")) == []


@pytest.mark.parametrize("status", ["running", "recovering", "stopped", ""])
def test_only_degraded_ones_are(status: str) -> None:
    assert Ticks().tick(row(status=status)) == []


def test_another_outage_is_reported_also_when_nobody_saw_it_run_between() -> None:
    ticks, down = Ticks(), row(status="degraded")
    ticks.tick(down)
    assert len(ticks.tick(replace(down, outage="r:2"))) == 1
    assert len(ticks.tick(replace(down, outage="r2:2"))) == 1
    ticks.tick(row())
    assert len(ticks.tick(down)) == 1


def test_each_pipeline_is_its_own() -> None:
    ticks = Ticks()
    ticks.tick(row("p", "degraded"))
    assert kinds(ticks.tick(row("p", "degraded"), row("q", "degraded", dead_letters=3))) == [
        ("degraded", "q"),
        ("dead-letters", "q"),
    ]


def test_growth_within_the_interval_is_reported() -> None:
    assert Ticks().letters(0, 1, 2, 3) == [0, 0, 0, 0]
    ticks = Ticks()
    assert ticks.letters(0, 1, 3, after=20) == [0, 0, 3]


def test_slow_growth_is_not() -> None:
    assert sum(Ticks().letters(*range(0, 40, 2), after=60)) == 0


def test_it_is_reported_at_most_once_per_interval_and_nothing_is_lost_meanwhile() -> None:
    ticks = Ticks()
    told = ticks.letters(*range(0, 200, 10), after=20)
    assert told[:6] == [0, 10, 0, 0, 30, 0]
    quiet = ticks.letters(*[190] * 10, after=20)
    assert sum(told) + sum(quiet) == 190


def test_a_few_after_an_alert_are_no_alert() -> None:
    ticks = Ticks()
    assert ticks.letters(3, 4, 5, 5, 5, 5, 5, after=20) == [3, 0, 0, 0, 0, 0, 0]


def test_a_new_pipelines_first_dead_letters_count() -> None:
    assert [alert.new for alert in Ticks().tick(row("new", dead_letters=5))] == [5]


def test_letters_of_one_whose_file_was_away_are_not_new() -> None:
    ticks = Ticks()
    assert ticks.letters(500) == [500]
    assert ticks.tick() == []
    assert ticks.letters(500, 500, 505) == [0, 0, 5]


def test_letters_from_before_they_were_asked_for_are_not_new() -> None:
    ticks = Ticks()
    assert ticks.letters(500) == [500]
    ticks.rules = replace(RULES, on=frozenset({"degraded"}))
    assert ticks.letters(600) == [0]
    ticks.rules = RULES
    assert ticks.letters(600, 600, 605) == [0, 0, 5]


def test_the_cursor_does_not_grow_with_pipelines_of_which_nothing_is_to_be_said() -> None:
    """Dagster keeps it with every tick for a week: two gigabytes with a thousand pipelines."""
    ticks = Ticks()
    quiet = [row(f"p{number}") for number in range(1000)]
    for _ in range(3):
        assert ticks.tick(*quiet) == []
        assert len(ticks.seen.text()) < 100
    assert ticks.tick(*quiet, row("q", "degraded")) != []
    ticks.tick(*quiet, row("q"))
    assert len(ticks.seen.text()) < 100


def test_a_pipelines_first_dead_letters_count_since_the_tick_that_saw_none() -> None:
    ticks = Ticks(replace(RULES, growth=1))
    ticks.tick(row())
    before = ticks.now
    (alert,) = ticks.tick(row(dead_letters=2))
    assert (alert.new, alert.since_ns) == (2, before)
    ticks = Ticks()
    assert ticks.letters(0, 0, 0, 1, 2, 3, after=20) == [0, 0, 0, 0, 0, 3]


def test_a_lost_cursor_repeats_the_current_state_at_most() -> None:
    down = row(status="degraded", dead_letters=500)
    decided = decide(None, [down, row("q", dead_letters=500)], RULES, NOW)
    assert kinds(decided.alerts) == [("degraded", "p")]
    assert decide(decided.seen, [down, row("q", dead_letters=500)], RULES, NOW + SECOND).alerts == []


def test_another_store_begins_anew() -> None:
    ticks = Ticks()
    assert ticks.letters(500, 0, 2, 5, after=5) == [500, 0, 0, 5]


def test_a_clock_that_was_set_back_delays_an_alert_by_one_interval_at_most() -> None:
    ticks = Ticks()
    ticks.letters(3)
    assert ticks.letters(10, after=-3600) == [0]
    assert ticks.letters(20, after=61) == [17]


def test_only_what_was_asked_for() -> None:
    down = row(status="degraded", dead_letters=500)
    assert kinds(Ticks(AlertRules(frozenset({"degraded"}))).tick(down)) == [("degraded", "p")]
    assert kinds(Ticks(AlertRules(frozenset({"dead-letters"}))).tick(down)) == [("dead-letters", "p")]
    assert Ticks(AlertRules(frozenset())).tick(down) == []


# -- what could not be sent -----------------------------------------------------------------------------------------


def failed(before: ReportedState | None, *rows: PipelineStanding, fails: str) -> tuple[AlertDecision, ReportedState]:
    decided = decide(before, rows, RULES, NOW)
    seen = decided.seen
    for alert in decided.alerts:
        if alert.kind == fails:
            seen = unsent(seen, before, alert)
    return decided, seen


@pytest.mark.parametrize(("fails", "other"), [("degraded", "dead-letters"), ("dead-letters", "degraded")])
@pytest.mark.parametrize("later", [30.0, 3600.0])
def test_what_was_not_sent_is_decided_again_and_nothing_else(fails: str, other: str, later: float) -> None:
    rows = [row(status="degraded", dead_letters=5), row("q", "degraded")]
    rules = replace(RULES, on=frozenset({"degraded", "dead-letters"}))
    decided, seen = failed(ReportedState(), *rows, fails=fails)
    assert {alert.kind for alert in decided.alerts} == {fails, other}
    again = decide(seen, rows, rules, NOW + round(later * SECOND)).alerts
    assert again == [alert for alert in decided.alerts if alert.kind == fails]


def test_a_second_outage_that_was_not_sent_is_still_another_one() -> None:
    down = row(status="degraded")
    first = decide(ReportedState(), [down], RULES, NOW).seen
    _, seen = failed(first, replace(down, outage="r:2"), fails="degraded")
    assert len(decide(seen, [replace(down, outage="r:2")], RULES, NOW).alerts) == 1
    # the first one was reported
    assert decide(seen, [down], RULES, NOW).alerts == []


# -- the cursor -----------------------------------------------------------------------------------------------------


def test_the_cursor_keeps_all_of_it() -> None:
    ticks = Ticks()
    ticks.tick(row(status="degraded", dead_letters=5), row("q:ü"))
    assert seen_of(ticks.seen.text()) == ticks.seen


@pytest.mark.parametrize("cursor", [None, "", "7", "{", '{"pipelines": []}', '{"pipelines": {"p": {"letters": 1}}}'])
def test_what_is_no_cursor_counts_as_lost(cursor: str | None) -> None:
    assert seen_of(cursor) is None
