"""The sensors' decisions, for everything that can be known of a pipeline. No store, no Dagster, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.recovery.policy import Policy, RestartHistory
from conduit_dagster.sensors.dagster_runs import LastRun
from conduit_dagster.sensors.decisions import (
    Cancelled,
    Report,
    Restart,
    Start,
    Stopped,
    StopRequest,
    lifecycle,
    recovery,
)
from conduit_dagster.sensors.known import File, KnownPipeline, Stored
from conduit_dagster.state.recovery_state import RecoveryState

SECOND = 1_000_000_000
NOW = 1_000_000 * SECOND
LEAD = 10 * SECOND
FILE = File("orders", "orders", True, "continuous", "d1", Policy(), "orders.yaml", AssetKeys("orders"))


def run(run_id: str = "r1", state: str = "failed", **more: Any) -> LastRun:
    ended = {name: name == state for name in ("active", "failed", "cancelled")}
    return LastRun(run_id, **ended, created_ns=NOW - 60 * SECOND, **more)


def waiting(due_in: float, **more: Any) -> Stored:
    """Failure 3 is recorded, its restart is due."""
    state = RecoveryState("r1", "", 3, RestartHistory(2, (NOW,)), NOW + round(due_in * SECOND), digest="d1", **more)
    return Stored("recovering", "", False, state)


def began(status: str = "running", reason: str = "", owned: bool = False, **more: Any) -> Stored:
    return Stored(status, reason, owned, RecoveryState(run="r1", **{"digest": "d1", **more}))


def recover(stored: Stored, last: LastRun | None, **more: Any) -> Any:
    return recovery(KnownPipeline(replace(FILE, **more), stored, last), NOW, LEAD)


def live(stored: Stored, last: LastRun | None, **more: Any) -> Any:
    return lifecycle(KnownPipeline(replace(FILE, **more), stored, last), NOW)


# -- recovery -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("due_in", [-3600.0, -1.0, 0.0, 1.0, 10.0])
def test_b11_a_restart_is_launched_when_it_is_near_or_overdue(due_in: float) -> None:
    assert recover(waiting(due_in), run()) == Restart(3, 2, NOW + round(due_in * SECOND))


def test_a_restart_is_not_launched_long_before_its_time() -> None:
    assert recover(waiting(10.1), run()) is None


@pytest.mark.parametrize("state", ["active", "succeeded"])
def test_a_restart_that_was_launched_is_not_launched_again(state: str) -> None:
    assert recover(waiting(0), run("r2", state, failure=3)) is None


def test_the_run_of_an_earlier_failure_is_no_restart_of_this_one() -> None:
    assert isinstance(recover(waiting(0), run("r2", failure=2)), Restart)


def test_a_restart_that_failed_before_it_began_is_a_failure_of_its_own() -> None:
    assert recover(waiting(-1), run("r2", failure=3)) == Report("r2", "never_began")


def test_a_restart_that_hangs_before_it_begins_is_a_failure_too() -> None:
    assert recover(waiting(-181), replace(run("r2", "active", failure=3), created_ns=NOW - 190 * SECOND)) == Report(
        "r2", "never_began"
    )
    assert recover(waiting(-179), replace(run("r2", "active", failure=3), created_ns=NOW - 190 * SECOND)) is None


def test_a_restart_in_dagsters_queue_has_time_until_it_is_launched() -> None:
    """A limit of concurrent runs holds it up: that is no crash, and counts as no failure."""
    queued = replace(run("r2", "active", failure=3), created_ns=NOW - 3600 * SECOND, queued=True)
    assert recover(waiting(-3600), queued) is None
    launched = replace(queued, queued=False, changed_ns=NOW - 179 * SECOND)
    assert recover(waiting(-3600), launched) is None
    assert recover(waiting(-3600), replace(launched, changed_ns=NOW - 181 * SECOND)) == Report("r2", "never_began")


@pytest.mark.parametrize("stored", [Stored(), began("stopped", "system"), began("degraded"), began(), waiting(-3600)])
def test_a_start_that_was_lost_before_it_began_is_a_failure_too(stored: Stored) -> None:
    """The daemon or the run's process was killed: Dagster counts it as active for ever."""
    lost = replace(run("r2", "active"), created_ns=NOW - 190 * SECOND)
    assert recover(stored, lost) == Report("r2", "never_began")
    assert recover(stored, replace(lost, queued=True)) is None
    assert recover(stored, replace(lost, changed_ns=NOW - 179 * SECOND)) is None
    assert recover(stored, replace(lost, start_limit_ns=600 * SECOND)) is None
    assert recover(replace(stored, owned=True), lost) is None


@pytest.mark.parametrize("failure", [None, 3])
def test_a_lost_run_of_before_the_last_end_is_no_failure(failure: int | None) -> None:
    lost = replace(run("r2", "active", failure=failure, asked_ns=5), created_ns=NOW - 190 * SECOND)
    ended = replace(began("stopped", "user", failure=3), written_ns=NOW - 185 * SECOND)
    assert recover(ended, lost) == Cancelled("r2", "called_off")
    assert recover(ended, replace(lost, changed_ns=NOW - 179 * SECOND)) is None
    wanted = replace(began("stopped", "user", failure=3, asked="start", asked_ns=5), written_ns=ended.written_ns)
    assert recover(wanted, lost) == Report("r2", "never_began")


def test_b10_a_restart_that_somebody_terminated_never_happens() -> None:
    assert recover(waiting(5), run("r2", "cancelled", failure=3)) == Stopped("r2")


@pytest.mark.parametrize("asked", ["stop", "force", "start"])
def test_what_an_operator_asked_for_goes_before_a_restart(asked: Any) -> None:
    assert recover(waiting(0, asked=asked), run()) is None


def test_a_start_by_hand_goes_before_a_restart() -> None:
    assert recover(waiting(0), run("r2", "active")) is None


def test_a_restart_does_not_wait_for_the_last_words_of_the_run_that_failed() -> None:
    """It has released its lease; a sensor that waited for Dagster's word would be a tick late."""
    assert recover(waiting(0), run("r1", "active")) == Restart(3, 2, NOW)


@pytest.mark.parametrize("last", [run(), run(state="active"), run(state="succeeded"), None, run("r0")])
def test_a_pipeline_without_a_living_owner_died(last: LastRun | None) -> None:
    assert recover(began(), last) == Report("r1", "died")
    assert recover(began("recovering"), last) == Report("r1", "died")


def test_b09_a_run_that_somebody_terminated_is_not_restarted() -> None:
    assert recover(began(), run(state="cancelled")) == Stopped("r1")


def test_a_successor_on_its_way_is_given_time() -> None:
    assert recover(began(), run("r2", "active")) is None


def test_a_living_owner_is_left_alone() -> None:
    assert recover(began(owned=True), run()) is None
    assert recover(replace(waiting(0), owned=True), run()) is None


@pytest.mark.parametrize("status", ["", "stopped", "degraded"])
def test_a_run_that_failed_before_the_store_heard_of_it_is_a_failure(status: str) -> None:
    assert recover(began(status), run("r2")) == Report("r2", "never_began")


def test_what_was_reported_once_is_not_reported_again() -> None:
    assert recover(began("degraded", reported="r2"), run("r2")) is None
    assert recover(began("degraded"), run("r1")) is None


@pytest.mark.parametrize("status", ["stopped", "degraded"])
def test_what_is_at_rest_stays_so(status: str) -> None:
    assert recover(began(status), run(state="succeeded")) is None
    assert recover(began(status), None) is None


def test_a_pipeline_that_can_not_run_is_not_restarted() -> None:
    assert recover(waiting(0), run(), runnable=False) is None


# -- lifecycle ------------------------------------------------------------------------------------------------------


def test_what_the_file_says_is_running_is_started() -> None:
    assert isinstance(live(Stored(), None), Start)
    assert live(Stored(), None, running=False) is None


@pytest.mark.parametrize("trigger", ["every", "cron"])
def test_a_timed_pipeline_is_left_to_its_schedule(trigger: str) -> None:
    assert live(Stored(), None, trigger=trigger) is None


def test_what_a_reboot_ended_comes_back() -> None:
    assert isinstance(live(began("stopped", "system"), run(state="succeeded")), Start)


def test_a_drained_pipeline_is_not_run_again_and_again() -> None:
    drained = began("stopped", "system")
    assert live(drained, run(state="succeeded"), trigger="available-now") is None
    assert isinstance(live(drained, run(state="succeeded"), trigger="available-now", digest="d2"), Start)


def test_what_a_user_stopped_stays_stopped_until_he_starts_it() -> None:
    assert live(began("stopped", "user"), run(state="cancelled")) is None
    assert isinstance(live(began("stopped", "user", asked="start"), run(state="cancelled")), Start)


def test_what_a_user_stopped_is_not_started_by_another_file() -> None:
    assert live(began("stopped", "user"), run(), digest="d2") is None
    assert live(began("degraded", "user"), run(), digest="d2") is None


def test_a_drain_by_hand_of_what_a_user_stopped_is_left_alone() -> None:
    assert live(began("running", "user", owned=True), run(), digest="d2") is None
    assert live(began("running", "user", owned=True), run(), running=False, digest="d2") is None


def test_a_drain_by_hand_that_died_is_not_restarted() -> None:
    assert recover(began("running", "user"), run()) == Stopped("r1")


def test_a_degraded_pipeline_waits_for_another_file_or_for_a_word() -> None:
    assert live(began("degraded"), run()) is None
    assert isinstance(live(began("degraded"), run(), digest="d2"), Start)
    assert isinstance(live(began("degraded", asked="start"), run()), Start)
    assert isinstance(live(began("degraded", asked="start"), run(), running=False), Start)


def test_a_pending_restart_can_be_started_at_once() -> None:
    assert live(waiting(60), run()) is None
    assert isinstance(live(waiting(60, asked="start"), run()), Start)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_first_run_that_did_not_begin_is_not_started_again(state: str) -> None:
    assert live(Stored(), run(state=state)) is None


def test_nothing_is_started_twice() -> None:
    assert live(Stored(), run(state="active")) is None
    assert live(began("stopped", "system", owned=True), run(state="succeeded")) is None
    assert live(began("stopped", "system", asked="stop"), run(state="succeeded")) is None


def test_a_start_does_not_wait_for_the_end_of_a_run_that_left_its_pipeline() -> None:
    """It may have been killed before it told Dagster, which counts it as active for ever."""
    assert isinstance(live(began("stopped", "system"), run("r1", "active")), Start)
    assert isinstance(live(began("stopped", "user", asked="start"), run("r1", "active")), Start)
    assert live(began("stopped", "system"), run("r2", "active")) is None


def test_only_what_changed_is_restarted() -> None:
    running = began(owned=True)
    assert live(running, run(state="active")) is None
    assert live(running, run(state="active"), digest="d2") == StopRequest("renew")
    assert live(running, run(state="active"), digest="d2", running=False) == StopRequest("stop")
    assert live(running, run(state="active"), digest="d2", runnable=False) is None
    assert live(began(owned=True, asked="renew"), run(state="active"), digest="d2") is None


def test_a_run_by_hand_of_a_stopped_file_goes_on() -> None:
    assert live(began(owned=True), run(state="active"), running=False) is None
