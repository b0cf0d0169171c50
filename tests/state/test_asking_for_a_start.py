"""Requests to start and stop, beside a run that begins, continues, has just ended or died."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from lab.leases import change_owner, silence
from lab.waiting import wait_until

from conduit_dagster.engine.operate.subject import ask_start, stop
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.state.lease import Lease, acquire
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_state import record_request, recovery_rows
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import pipelines, recoveries


def test_a_run_that_has_ended_and_still_holds_its_lease_is_over(database: sa.Engine) -> None:
    lease = acquire(database, "p", 30.0)
    status = PipelineStore(database, lease).status
    status.begin(RunStart("first", "p.yaml"))
    assert not ask_start(database, "p", "operator", 10.0)
    assert recovery_rows(database)["p"].asked == ""
    status.ended("stopped")
    assert ask_start(database, "p", "operator", 10.0)
    assert recovery_rows(database)["p"].asked == "start"
    # a run that begins meanwhile is the requested start
    status.begin(RunStart("second", "p.yaml"))
    assert recovery_rows(database)["p"].asked == ""
    lease.release()


def running_elsewhere(database: sa.Engine, seconds: float) -> Lease:
    lease = acquire(database, "p", seconds)
    PipelineStore(database, lease).status.begin(RunStart("first", "p.yaml"))
    change_owner(database, host="elsewhere", boot="other")
    return lease


def test_a_run_that_died_elsewhere_can_be_started_again(database: sa.Engine) -> None:
    silence(running_elsewhere(database, 0.4))
    assert ask_start(database, "p", "operator", 0.4)
    assert recovery_rows(database)["p"].asked == "start"


def test_a_run_that_lives_elsewhere_is_not_started_again(database: sa.Engine) -> None:
    lease = running_elsewhere(database, 1.0)
    assert not ask_start(database, "p", "operator", 30.0)
    lease.release()


def test_a_pipeline_that_is_deleted_while_its_stop_is_awaited_has_ended(database: sa.Engine) -> None:
    """So has one whose request a failover of the store has lost."""
    lease = acquire(database, "p", 30.0)
    PipelineStore(database, lease).status.begin(RunStart("first", "p.yaml"))
    silence(lease)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(stop, database, "p", "operator", False, 30.0, 20.0)
        wait_until(lambda: recovery_rows(database)["p"].asked == "stop", "the stop is requested")
        with database.begin() as connection:
            for table in (pipelines, recoveries):
                connection.execute(sa.delete(table))
        assert stopped.result(60)


def test_a_run_that_died_elsewhere_can_be_stopped(database: sa.Engine) -> None:
    silence(running_elsewhere(database, 0.4))
    assert stop(database, "p", "operator", False, 0.4, 20.0)
    row = pipeline_rows(database)["p"]
    assert (row["status"], row["reason"], row["owner"]) == ("stopped", "user", None)


def ended(database: sa.Engine, reason: str) -> None:
    lease = acquire(database, "p", 30.0)
    status = PipelineStore(database, lease).status
    status.begin(RunStart("before"))
    status.ended(PipelineStatus.STOPPED, reason)
    lease.release()


def test_a_stop_withdraws_a_start_that_has_not_begun(database: sa.Engine) -> None:
    ended(database, "user")
    assert not stop(database, "p", "operator", False, 10.0, 90.0)
    assert ask_start(database, "p", "operator", 10.0)
    assert stop(database, "p", "operator", False, 10.0, 90.0)
    assert recovery_rows(database)["p"].asked == ""


def test_a_stop_while_a_run_takes_the_lease_ends_that_run(database: sa.Engine) -> None:
    """A request from before, which had no run to end, does not."""
    ended(database, "system")
    record_request(database, "p", "stop", "operator")
    began = time.time_ns()
    lease = acquire(database, "p", 30.0)
    status = PipelineStore(database, lease).status
    assert status.begin(RunStart("first", since_ns=began)) is not None
    record_request(database, "p", "stop", "operator")
    assert status.begin(RunStart("second", since_ns=began)) is None
    assert recovery_rows(database)["p"].asked == ""
    lease.release()
    row = pipeline_rows(database)["p"]
    assert (row["status"], row["reason"]) == ("stopped", "user")


def test_a_command_at_work_runs_nothing_where_a_run_was_killed(database: sa.Engine) -> None:
    """A start was refused as if the pipeline ran, and nothing started it when the command had ended."""
    lease = acquire(database, "p", 30.0)
    PipelineStore(database, lease).status.begin(RunStart("first", "p.yaml"))
    lease.release()  # the status of a run that was killed stays
    command = acquire(database, "p", 30.0, by_command=True)
    assert ask_start(database, "p", "operator", 10.0)
    assert recovery_rows(database)["p"].asked == "start"
    command.release()


def test_a_stop_that_waits_for_a_command_says_so(database: sa.Engine) -> None:
    """It said to stop by force, which no command heeds."""
    ended(database, "system")
    command = acquire(database, "p", 30.0, by_command=True)
    with pytest.raises(TransientError) as waiting:
        stop(database, "p", "operator", False, 10.0, 0.2)
    assert (waiting.value.code, waiting.value.fix) == (
        "pipeline.stopping",
        "wait for that command's end, then repeat: conduit-dagster pipelines stop p",
    )
    assert f"a command is at work on it, in process {os.getpid()}" in str(waiting.value)
    command.release()
    assert stop(database, "p", "operator", False, 10.0, 20.0)
