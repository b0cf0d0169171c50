"""Runs that end because another process had the lease for a moment, or with a request pending, leave nothing stuck."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from lab.as_owner import owned
from lab.sensors_lab import Location
from lab.waiting import wait_until
from sqlalchemy import event as sql_event

from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.engine.report import RunProgress
from conduit_dagster.engine.run_status import RunDeath, RunOrigin, RunStatusWriter, report_failure
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.recovery_state import record_request
from conduit_dagster.state.tables import pipelines

LIFECYCLE = "conduit_lifecycle"
AWAY = TransientError("the destination does not answer", code="connector.failed")


def digest(location: Location) -> str:
    return open_catalogue(location.project).bound[0].digest


def requests(location: Location, sensor: str = "conduit_recovery") -> list[Any]:
    """Return the requests of the first tick that has any."""
    found: list[Any] = []
    wait_until(lambda: bool(found.extend(location.tick(sensor)) or found), "a run is requested")
    return found


def test_a_restart_that_found_the_lease_taken_is_launched_again(location: Location) -> None:
    """As by an operator's command, which is what one types while a pipeline recovers."""
    location.write()
    run = location.restart()
    location.fails_with(run, "lease.held")
    (again,) = requests(location)
    assert again.tags[".dagster/conduit_failure"] == "1"
    location.launch(again)
    assert location.tick() == []


def test_a_start_that_found_the_lease_taken_is_launched_again(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location))
    location.end("stopped", "system")
    (request,) = location.tick(LIFECYCLE)
    location.fails_with(location.launch(request), "lease.held")
    assert location.tick() == []
    assert len(location.tick(LIFECYCLE)) == 1


def test_a_second_launch_while_it_runs_changes_nothing(location: Location) -> None:
    location.write()
    (request,) = location.tick(LIFECYCLE)
    first = location.launch(request)
    location.begin(run=first.run_id, alive=True, digest=digest(location))
    location.fails_with(location.run(), "lease.held")
    assert (location.tick(), location.tick(LIFECYCLE)) == ([], [])
    location.end("stopped", "system")
    location.instance.report_run_failed(first)
    location.tick()
    assert len(location.tick(LIFECYCLE)) == 1


def test_an_owner_that_lost_its_lease_to_a_command_is_restarted(location: Location) -> None:
    location.write()
    run = location.run()
    location.begin(run=run.run_id, alive=True)
    elsewhere = '{"host": "other", "boot": "x", "namespace": "y", "pid": 1, "started": "1"}'
    with location.store.begin() as connection:
        connection.execute(sa.update(pipelines).values(owner=elsewhere))
    acquire(location.store, "orders", 0.5).release()
    location.fails_with(run, "lease.lost")
    (restart,) = requests(location)
    assert location.status()[0] == "recovering" and restart.tags[".dagster/conduit_failure"] == "1"


def test_a_failure_that_is_recorded_while_a_tick_reads_counts_once(location: Location) -> None:
    """The tick read recoveries before it and pipelines after it: it took the failure for a death."""
    location.write()
    run = location.run()
    location.begin(run=run.run_id, alive=True)
    due = [lambda: location.fail_by_itself(run=run.run_id)]

    def fail_now(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        if "FROM conduit_recoveries" in statement and due:
            due.pop()()

    sql_event.listen(sa.Engine, "after_cursor_execute", fail_now)
    try:
        location.tick()
    finally:
        sql_event.remove(sa.Engine, "after_cursor_execute", fail_now)
    assert not due
    assert (location.status(), location.recovery().failure) == (("recovering", ""), 1)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_run_that_begins_while_it_is_reported_is_left_alone(
    location: Location, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had taken as long to begin as the sensor waits, and was shown as failed in Dagster, or lost its lease."""
    location.write()
    if not is_first:
        location.begin(digest=digest(location))
        location.end("stopped", "system")
    run = location.launch(*location.tick(LIFECYCLE))

    def late(*given: Any) -> Any:
        location.begin(run=run.run_id, alive=True)
        return report_failure(*given)

    monkeypatch.setattr("conduit_dagster.sensors.executor.report_failure", late)
    assert location.tick_later(monkeypatch) == []
    assert location.dagster_status(run) is dg.DagsterRunStatus.STARTED
    assert (location.status(), location.recovery().failure) == (("running", ""), 0)


def test_a_death_is_not_reported_for_the_next_owner(location: Location) -> None:
    """Which has taken the lease since the tick looked, and shows its first heartbeat only later."""
    location.write()
    location.begin()
    with location.store.connect() as connection:
        epoch = connection.execute(sa.select(pipelines.c.epoch)).scalar_one()
    later = acquire(location.store, "orders", 0.5)
    try:
        died = TransientError("it died", code="run.died")
        assert report_failure(location.store, "orders", RunDeath("r1", died, epoch), Policy()) is None
        with location.store.connect() as connection:
            assert connection.execute(sa.select(pipelines.c.epoch)).scalar_one() == later.epoch
    finally:
        later.release()


@pytest.mark.parametrize(
    ("asked", "status"), [("renew", "recovering"), ("stop", "stopped"), ("force", "degraded"), ("", "recovering")]
)
def test_a_failure_while_a_request_is_pending_fulfils_it(location: Location, asked: str, status: str) -> None:
    location.write()
    run = location.run()
    with owned(location.root, "orders") as store:
        writer = RunStatusWriter(store, RunOrigin(Policy(), run.run_id), StopFlag(), RunProgress())
        writer.begin("f", digest(location))
        if asked == "renew":
            location.write(description="corrected")
            location.tick(LIFECYCLE)
        elif asked:
            record_request(location.store, "orders", asked, "an operator")  # type: ignore[arg-type]
        assert location.recovery().asked == asked
        assert writer.failed(AWAY).status == status
    location.instance.report_run_failed(run)
    assert (location.recovery().asked, location.status()[0]) == ("", status)
    if status == "recovering":
        assert len(requests(location)) == 1
    else:
        assert (location.tick(), location.tick(LIFECYCLE)) == ([], [])


def test_a_clock_that_is_set_back_delays_no_restart(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    location.write()
    location.begin()
    location.fail()
    corrected = SimpleNamespace(**vars(time))
    corrected.time_ns = lambda: time.time_ns() - 86_400 * 10**9
    monkeypatch.setattr("conduit_dagster.sensors.tick.time", corrected)
    assert len(location.tick()) == 1


def begun_behind_a_refused_one(location: Location) -> dg.DagsterRun:
    """Return a run whose process has died, and behind which a later one found the lease taken."""
    location.write()
    run = location.run()
    location.begin(run=run.run_id)
    location.fails_with(location.run(), "lease.held")
    return run


def test_a_run_that_died_has_ended_in_dagster_too_though_a_later_one_was_refused(location: Location) -> None:
    """It was shown as running for ever, and counted for Dagster's limits of runs."""
    run = begun_behind_a_refused_one(location)
    location.tick()
    assert location.status() == ("recovering", "")
    assert location.dagster_status(run) is dg.DagsterRunStatus.FAILURE


def test_a_run_that_a_user_terminated_stays_ended_though_a_later_one_was_refused(location: Location) -> None:
    """Its process died before it could record that: it was taken for a failure, and restarted."""
    run = begun_behind_a_refused_one(location)
    location.terminate(run)
    assert location.tick() == []
    assert location.status() == ("stopped", "user")


def test_a_drain_of_another_job_that_a_user_terminated_before_it_was_killed_stays_ended(location: Location) -> None:
    """As that of a user's own job: its pipeline was restarted. The job's run itself is left to Dagster."""
    location.write(status="stopped")
    run = dg.DagsterRun("__ASSET_JOB", status=dg.DagsterRunStatus.STARTED)
    location.instance.add_run(run)
    location.begin(run=run.run_id)
    location.instance.report_run_canceling(run)
    assert location.tick() == location.tick() == []
    assert location.status() == ("stopped", "user")
    assert location.dagster_status(run) is dg.DagsterRunStatus.CANCELING
    assert "failed" not in location.events()
