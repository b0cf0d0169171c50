"""Runs that Dagster's run monitoring ends: what its own functions record, and what the sensors make of that."""

from __future__ import annotations

import logging
import time

import dagster as dg
import pytest
from dagster._daemon.monitoring.run_monitoring import check_run_timeout, monitor_starting_run
from lab.sensors_lab import Location

log = logging.getLogger()


def _record(location: Location, run: dg.DagsterRun) -> dg.RunRecord:
    record = location.instance.get_run_record_by_id(run.run_id)
    assert record is not None
    return record


def _happened(location: Location, run: dg.DagsterRun, kind: dg.DagsterEventType) -> None:
    """Record what happened to the run a minute ago."""
    event = dg.DagsterEvent(kind.value, run.job_name)
    location.instance.report_dagster_event(event, run.run_id, timestamp=time.time() - 60)


def test_a_run_that_dagster_cancels_for_its_runtime_before_it_began_is_restarted(location: Location) -> None:
    """As while it opens Spark: no user terminated it, and its pipeline must not stay away."""
    location.write()
    run = location.run(**{"dagster/max_runtime": "1"})
    _happened(location, run, dg.DagsterEventType.RUN_START)
    check_run_timeout(location.instance, _record(location, run), log, 0.0)
    location.instance.report_run_canceled(run)
    assert location.tick() == location.tick("conduit_lifecycle") == []
    assert location.status() == ("recovering", "")
    assert [request.job_name for request in location.tick()] == ["orders"]


@pytest.mark.parametrize("is_slow", [True, False])
def test_the_error_of_a_run_that_died_says_what_dagster_found(location: Location, is_slow: bool) -> None:
    location.write()
    settings = {"run_monitoring": {"enabled": True, "start_timeout_seconds": 30}}
    with dg.DagsterInstance.ephemeral(settings=settings) as location.instance:
        run = location.run(status="STARTING" if is_slow else "STARTED")
        if is_slow:
            _happened(location, run, dg.DagsterEventType.RUN_STARTING)
            monitor_starting_run(location.instance, _record(location, run), log)
        else:
            location.instance.report_run_failed(run, "unexpectedly exited with exit code -9")
        assert location.tick() == []
        cause = location.recovery().cause
    assert cause["code"] == "run.died"
    assert ("longer than 30 seconds to start" if is_slow else "exit code -9") in cause["message"]
    assert ("start_timeout_seconds" if is_slow else "system's log") in cause["fix"]
