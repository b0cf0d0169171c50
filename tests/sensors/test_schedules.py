"""Timed triggers as Dagster's schedules, with its run storage."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from lab.sensors_lab import Location

from conduit_dagster.config.project import Project
from conduit_dagster.engine.operate.subject import subject
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.sensors import known, schedules
from conduit_dagster.state.claim import project_store
from conduit_dagster.state.lease import acquire

EVERY = "{every: 90s}"
NIGHTLY = '{cron: "15 3 * * *"}'


@pytest.fixture
def location(location: Location, tmp_path: Path) -> Iterator[Location]:
    """A schedule opens Dagster's storage again, so it has to be on disk."""
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        location.instance = instance
        yield location


def schedule(location: Location) -> dg.ScheduleDefinition:
    return location.definitions.get_repository_def().get_schedule_def("orders__schedule")


def requests(location: Location, now: datetime) -> list[dg.RunRequest]:
    """What the schedule requests at this time."""
    repository = location.definitions.get_repository_def()
    with dg.build_schedule_context(location.instance, now, repository_def=repository) as context:
        return list(schedule(location).evaluate_tick(context).run_requests or [])


def ticks(location: Location, now: datetime) -> list[str | None]:
    """The keys of what the schedule requests at this time."""
    return [request.run_key for request in requests(location, now)]


def minute_of_run(location: Location) -> datetime:
    """The minute in which the run was created, which may have passed since."""
    (record,) = location.instance.get_run_records()
    return record.create_timestamp.replace(second=0, microsecond=0)


def test_a_cron_is_dagsters_own(location: Location) -> None:
    location.write(trigger=NIGHTLY)
    location.write("always")
    assert [one.name for one in location.definitions.get_repository_def().schedule_defs] == ["orders__schedule"]
    one = schedule(location)
    assert (one.cron_schedule, one.execution_timezone, one.job_name) == ("15 3 * * *", "UTC", "orders")
    now = datetime(2026, 11, 22, 3, 15, tzinfo=UTC)
    (key,) = ticks(location, now)
    # the same tick, evaluated again after a crash, is the same run
    assert ticks(location, now) == [key]
    assert ticks(location, now + timedelta(days=1)) != [key]


@pytest.mark.parametrize("trigger", [EVERY, NIGHTLY])
def test_a_tick_whose_run_was_not_launched_is_the_same_run(location: Location, trigger: str) -> None:
    """The daemon was killed between the run's creation and its launch, and evaluates the tick again."""
    location.write(trigger=trigger)
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    (key,) = ticks(location, now)
    location.run(status="NOT_STARTED", **{"dagster/run_key": str(key)})
    assert ticks(location, now) == [key]
    assert ticks(location, now + timedelta(days=1)) == []


@pytest.mark.parametrize(("status", "on"), [("running", "RUNNING"), ("stopped", "STOPPED")])
def test_the_file_says_whether_it_runs(location: Location, status: str, on: str) -> None:
    location.write(status=status, trigger=EVERY)
    assert schedule(location).default_status is dg.DefaultScheduleStatus(on)


def test_every_is_counted_from_the_start_of_the_run_before(location: Location) -> None:
    location.write(trigger=EVERY)
    now = datetime.now(UTC)
    assert schedule(location).cron_schedule == "* * * * *"
    assert len(ticks(location, now)) == 1
    location.run(status="SUCCESS")
    minute = minute_of_run(location)
    assert ticks(location, minute + timedelta(seconds=60)) == []
    assert len(ticks(location, minute + timedelta(seconds=120))) == 1


@pytest.mark.parametrize(("code", "is_due"), [("lease.held", True), ("spark.server_failed", False)])
def test_every_is_not_counted_from_a_run_that_was_refused(location: Location, code: str, is_due: bool) -> None:
    """As one that a user launched while the run before was at work: the next one came late by up to an interval."""
    location.write(trigger="{every: 1h}")
    run = location.run()
    location.backdate(run, timedelta(hours=1))
    location.begin(run=run.run_id)
    location.end("stopped", "system")
    location.instance.report_run_failed(run)
    location.fails_with(location.run(), code)
    assert bool(ticks(location, datetime.now(UTC))) is is_due


def test_a_clock_that_is_set_back_does_not_stretch_the_wait(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    location.write(trigger=EVERY)
    location.run(status="SUCCESS")

    class Behind(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - timedelta(hours=1)

    monkeypatch.setattr(schedules, "datetime", Behind)
    assert len(ticks(location, Behind.now(UTC))) == 1


@pytest.mark.parametrize("hours", [-8, 0, 9])
def test_every_is_counted_in_any_time_zone_of_the_run_storage(location: Location, hours: int) -> None:
    """PostgreSQL keeps its server's local time, which Dagster reads as UTC."""
    location.write(trigger="{every: 1h}")
    location.run(status="SUCCESS")
    minute = minute_of_run(location)
    location.zoned(hours)
    assert ticks(location, minute + timedelta(minutes=59)) == []
    assert len(ticks(location, minute + timedelta(minutes=60))) == 1


def test_every_minute_is_every_minute(location: Location) -> None:
    """Although a run is created a moment after its tick."""
    location.write(trigger="{every: 60s}")
    location.run(status="SUCCESS")
    minute = minute_of_run(location)
    assert len(ticks(location, minute + timedelta(seconds=60))) == 1


@pytest.mark.parametrize("trigger", [EVERY, NIGHTLY])
def test_a_tick_that_overlaps_a_run_starts_nothing(location: Location, trigger: str) -> None:
    location.write(trigger=trigger)
    run = location.run()
    later = datetime.now(UTC) + timedelta(days=1)
    assert ticks(location, later) == []
    location.instance.report_run_failed(run)
    assert len(ticks(location, later)) == 1


def test_a_tick_does_not_wait_for_the_end_of_a_run_that_left_its_pipeline(location: Location) -> None:
    """It may have been killed before it told Dagster, which counts it as active for ever."""
    location.write(trigger=NIGHTLY)
    run = location.run()
    location.begin(run=run.run_id, alive=True)
    later = datetime.now(UTC) + timedelta(days=1)
    assert ticks(location, later) == []
    location.end("stopped", "system")
    assert len(ticks(location, later)) == 1


def test_a_tick_does_not_begin_the_backoff_anew(location: Location) -> None:
    """A start would reset the count: with a tick each minute no delay grew beyond it, and nothing was given up."""
    location.write(trigger=EVERY)
    location.begin()
    location.run(status="FAILURE")
    later = datetime.now(UTC) + timedelta(minutes=10)
    location.fail(policy=Policy(min_delay=3600, max_delay=3600))
    assert ticks(location, later) == []
    # nobody has launched the restart, as without the recovery sensor
    location.fail(policy=Policy(min_delay=0.001))
    assert len(ticks(location, later)) == 1


@pytest.mark.parametrize("trigger", [EVERY, NIGHTLY])
def test_a_stop_before_the_first_tick_withholds_it_until_a_start(location: Location, trigger: str) -> None:
    """It was refused, since the pipeline had never run, and the tick started it."""
    location.write(trigger=trigger)
    later = datetime.now(UTC) + timedelta(days=1)
    acquire(location.store, "orders", 1.0).release()  # a command's: it stops nothing
    assert len(ticks(location, later)) == 1
    assert subject(location.project, "orders").stop("operator")
    assert ticks(location, later) == []
    assert subject(location.project, "orders").start("operator")
    assert len(ticks(location, later)) == 1
    location.begin()
    location.end("stopped", "system")
    assert len(ticks(location, later)) == 1


@pytest.mark.parametrize("status", ["stopped", "degraded"])
def test_a_stop_withholds_all_ticks_until_a_start(location: Location, status: str) -> None:
    """Until then it stays stopped, as without a schedule; by force it is degraded. The next tick started it."""
    location.write(trigger=NIGHTLY)
    later = datetime.now(UTC) + timedelta(days=1)
    location.begin()
    location.end(status, "user")
    assert ticks(location, later) == []
    location.begin(run="r2", drains=True)  # by hand
    assert ticks(location, later) == []
    location.end("stopped", "system")
    assert ticks(location, later) == []
    assert subject(location.project, "orders").start("operator")
    assert len(ticks(location, later)) == 1
    location.begin(run="r3")
    location.end("stopped", "system")
    assert len(ticks(location, later)) == 1


def test_an_error_withholds_no_tick(location: Location) -> None:
    location.write(trigger=NIGHTLY)
    location.begin()
    location.end("degraded", "")
    assert len(ticks(location, datetime.now(UTC) + timedelta(days=1))) == 1


def test_a_run_that_is_terminated_in_dagster_leaves_the_next_tick_its_own(location: Location) -> None:
    """Unless the pipeline is stopped as well."""
    location.write(trigger=NIGHTLY)
    later = datetime.now(UTC) + timedelta(days=1)
    run = location.run()
    location.begin(run=run.run_id)
    location.terminate(run)
    location.end("stopped", "user")
    (request,) = requests(location, later)
    run = location.launch(dg.RunRequest(job_name="orders", tags=request.tags))
    assert location.begins(run)
    location.terminate(run)
    location.end("stopped", "user")
    assert not subject(location.project, "orders").stop("operator")  # it was stopped already
    assert ticks(location, later) == []


@pytest.mark.parametrize("also", ["nothing", "a stop", "a drain by hand"])
def test_a_run_that_was_terminated_leaves_the_next_tick_its_own_once_it_is_deleted(
    location: Location, also: str
) -> None:
    """Its pipeline counted as stopped by the user for ever, also where Dagster was given another storage."""
    location.write(trigger=NIGHTLY)
    run = location.run()
    location.begin(run=run.run_id)
    if also == "a stop":
        subject(location.project, "orders").stop("operator")
    else:
        location.terminate(run)
        location.end("stopped", "user")
    location.instance.delete_run(run.run_id)
    if also == "a drain by hand":
        assert not subject(location.project, "orders").stop("operator")
        location.begin(run=dg.DagsterRun("__ASSET_JOB").run_id, drains=True)
        location.end("stopped", "system")
    assert len(ticks(location, datetime.now(UTC) + timedelta(days=1))) == (1 if also == "nothing" else 0)


@pytest.mark.parametrize("by_command", [True, False])
def test_a_tick_starts_nothing_beside_a_command_or_a_run_outside_of_dagster(
    location: Location, by_command: bool
) -> None:
    """Each tick launched a run, which was refused, for as long as a command such as ``dlq replay`` was at work."""
    location.write(trigger=NIGHTLY)
    later = datetime.now(UTC) + timedelta(days=1)
    lease = acquire(location.store, "orders", 30, by_command=by_command)
    assert ticks(location, later) == []
    lease.release()
    assert len(ticks(location, later)) == 1


@pytest.mark.parametrize("job", ["orders", "__ASSET_JOB"])
def test_a_tick_starts_nothing_beside_a_run_after_which_another_one_was_refused(location: Location, job: str) -> None:
    """Each tick launched a run, which was refused, for as long as the first was at work."""
    location.write(trigger=EVERY)
    run = dg.DagsterRun(job, status=dg.DagsterRunStatus.STARTED)
    location.instance.add_run(run)
    location.begin(run=run.run_id, alive=True)
    location.run(status="FAILURE")
    later = datetime.now(UTC) + timedelta(days=1)
    assert ticks(location, later) == []
    location.instance.report_run_failed(run)
    location.end("degraded", "")
    assert len(ticks(location, later)) == 1


@pytest.mark.parametrize("status", ["FAILURE", "CANCELED"])
def test_a_run_that_never_began_does_not_hide_the_one_that_was_terminated(location: Location, status: str) -> None:
    """As one that a user launched while it was at work, which was refused: no tick started anything any more."""
    location.write(trigger=NIGHTLY)
    run = location.run()
    location.begin(run=run.run_id)
    location.run(status=status)
    location.terminate(run)
    location.end("stopped", "user")
    later = datetime.now(UTC) + timedelta(days=1)
    assert len(ticks(location, later)) == 1
    assert not subject(location.project, "orders").stop("operator")
    assert ticks(location, later) == []


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_a_stop_after_a_tick_withdraws_the_run_that_waits_in_a_queue(location: Location, status: str) -> None:
    """The run began, since the request had been carried out by then."""
    location.write(status=status, trigger=NIGHTLY)
    location.begin()
    location.end("stopped", "system")
    operated, later = subject(location.project, "orders"), datetime.now(UTC) + timedelta(days=1)
    (request,) = requests(location, later)

    def queued() -> dg.DagsterRun:
        return location.launch(dg.RunRequest(job_name="orders", tags=request.tags), "STARTING")

    run = queued()
    assert operated.stop("operator")
    assert not location.begins(run, status)
    location.instance.report_run_canceled(run)
    # one that was launched before the stop and comes even later
    run = queued()
    assert not operated.stop("operator")  # it was stopped already
    assert not location.begins(run, status)
    location.instance.report_run_canceled(run)
    run = queued()
    assert operated.start("operator")
    assert location.begins(run, status)


def test_ticks_open_the_state_store_once(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[Project]()
    monkeypatch.setattr(known, "project_store", lambda project: opened.append(project) or project_store(project))
    location.write(trigger=EVERY)
    location.begin()
    location.run(status="FAILURE")
    location.fail(policy=Policy(min_delay=3600, max_delay=3600))
    for minutes in (10, 11, 12):
        assert ticks(location, datetime.now(UTC) + timedelta(minutes=minutes)) == []
    assert len(opened) == 1


def test_a_tick_does_not_wait_for_a_state_store_that_is_away(location: Location) -> None:
    location.write(trigger=EVERY)
    location.begin()
    location.run(status="FAILURE")
    location.fail(policy=Policy(min_delay=3600, max_delay=3600))
    location.store.dispose()
    (location.root / ".conduit" / "state.db").unlink()
    assert len(ticks(location, datetime.now(UTC) + timedelta(minutes=10))) == 1
