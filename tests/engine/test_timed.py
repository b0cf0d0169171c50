"""A timed pipeline in a process of its own: a tick starts a run, and only one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from lab.recovery_lab import ALL, QUICK, build, events, ids, in_background, keeper, names, status
from lab.support import Lab
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.config.delivery import Trigger, tick_after_run
from conduit_dagster.engine import restart_loop
from conduit_dagster.engine.operate.subject import ask_start, stop
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state.lease import acquire

OFTEN = Trigger(kind="every", every=0.3)
SELDOM = Trigger(kind="every", every=3600)
NIGHTLY = Trigger(kind="cron", cron="15 3 * * *")


@pytest.fixture
def lab(tmp_path: Any, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


@contextmanager
def timed(lab: Lab, trigger: Trigger) -> Iterator[tuple[list[RunResult], Callable[[], None]]]:
    """Run it in the background; return where its result will be, and a function that stops it and waits."""
    flag = StopFlag()
    with keeper(lab, QUICK, flag) as one:
        thread, results = in_background(lambda: one.timed(lambda: lab._spark, trigger))  # type: ignore[arg-type, return-value]

        def end() -> None:
            flag.request("user")
            thread.join(120)
            assert not thread.is_alive()

        try:
            yield results, end
        finally:
            end()


def starts(lab: Lab) -> int:
    return names(lab).count("started")


def test_it_runs_at_every_tick_until_it_is_stopped(lab: Lab) -> None:
    build(lab)
    with timed(lab, OFTEN) as (results, end):
        wait_until(lambda: names(lab).count("stopped") >= 3, "three runs have ended")
        end()
    assert [(one.status, one.reason) for one in results] in ([("stopped", "user")], [("stopped", "system")])
    assert ids(lab) == ALL
    # each run ended before the next began
    told = [name for name in names(lab) if name in ("started", "stopped")]
    assert told == ["started", "stopped"] * (len(told) // 2)


def test_a_long_wait_is_cut_short_by_somebody_who_starts_it(lab: Lab) -> None:
    build(lab)
    with timed(lab, SELDOM) as (_, end):
        wait_until(lambda: names(lab)[-1:] == ["stopped"], "the first run has ended")
        with lab.store() as database:
            assert ask_start(database, "p", "operator", 10.0)
        wait_until(lambda: starts(lab) == 2, "it began again")
        end()


def test_a_clock_that_is_set_back_during_a_run_does_not_stretch_the_wait(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = [86_400.0]
    clock = SimpleNamespace(**vars(time))
    clock.time, clock.time_ns = lambda: time.time() + ahead[0], lambda: time.time_ns() + int(ahead[0]) * 10**9

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=ahead[0])

    monkeypatch.setattr(restart_loop, "time", clock)
    monkeypatch.setattr(restart_loop, "datetime", Ahead)
    build(lab)

    def session() -> Any:
        ahead[0] = 0.0
        return lab._spark

    flag = StopFlag()
    with keeper(lab, QUICK, flag) as one:
        thread, _ = in_background(lambda: one.timed(session, OFTEN))
        try:
            wait_until(lambda: starts(lab) >= 2, "it began again")
        finally:
            flag.request("user")
            thread.join(120)
    assert not thread.is_alive()


def test_a_tick_of_cron_during_a_run_is_skipped() -> None:
    ended = datetime(2026, 11, 28, 3, 40, tzinfo=UTC)
    assert tick_after_run(NIGHTLY, ended, 3600) == datetime(2026, 11, 29, 3, 15, tzinfo=UTC)
    assert tick_after_run(SELDOM, ended, 1200) == datetime(2026, 11, 28, 4, 20, tzinfo=UTC)


def test_a_users_stop_between_two_ticks_ends_it(lab: Lab) -> None:
    build(lab)
    with timed(lab, SELDOM) as (results, _):
        wait_until(lambda: names(lab)[-1:] == ["stopped"], "the first run has ended")
        with lab.store() as database:
            assert stop(database, "p", "operator", False, 10, 90)
        wait_until(lambda: bool(results), "it ended")
    assert starts(lab) == 1
    assert status(lab) == ("stopped", "user")


def test_a_users_stop_before_the_first_tick_ends_it(lab: Lab) -> None:
    """One from before it was started does not."""
    build(lab)
    assert lab.run().error is None
    with timed(lab, NIGHTLY) as (results, _):
        with lab.store() as database:
            assert stop(database, "p", "operator", False, 10, 90)
        wait_until(lambda: bool(results), "it ended")
    assert [(one.status, one.reason) for one in results] == [("stopped", "user")]
    with timed(lab, NIGHTLY) as (results, _):
        with lab.store() as database:
            assert ask_start(database, "p", "operator", 10.0)
        wait_until(lambda: starts(lab) == 2, "it began")


@pytest.mark.parametrize("has_row", [False, True])
def test_a_users_stop_before_the_first_tick_of_one_that_never_ran_ends_it(
    lab: Lab, has_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a row as soon as a command has worked on it."""
    build(lab)
    with lab.store() as database:
        if has_row:
            acquire(database, "p", 1.0).release()
    waits, await_tick = threading.Event(), restart_loop.await_tick
    monkeypatch.setattr(restart_loop, "await_tick", lambda *given: (waits.set(), await_tick(*given))[1])
    with timed(lab, NIGHTLY) as (results, _):
        assert waits.wait(60)
        with lab.store() as database:
            assert stop(database, "p", "operator", False, 10, 90, starts_itself=True)
        wait_until(lambda: bool(results), "it ended")
    assert [(one.status, one.reason) for one in results] == [("stopped", "user")]
    assert starts(lab) == 0


def test_a_failure_is_recovered_within_its_tick(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "times": "once"})
    with timed(lab, SELDOM):
        wait_until(lambda: names(lab)[-1:] == ["stopped"], "the first run has ended")
    assert names(lab)[:4] == ["started", "failed", "waiting", "restarted"]
    assert ids(lab) == ALL


def test_a_degraded_one_has_no_more_ticks(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "code": "422"})
    with timed(lab, OFTEN) as (results, _):
        wait_until(lambda: bool(results), "it ended")
    assert [one.status for one in results] == ["degraded"]
    assert starts(lab) == 1


def test_cron_waits_for_its_time(lab: Lab) -> None:
    build(lab)
    with timed(lab, NIGHTLY) as (results, end):
        end()
    assert [(one.status, one.progress.read) for one in results] == [("stopped", 0)]
    assert events(lab) == []
