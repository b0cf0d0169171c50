"""Runs of a pipeline's job that have only a user's asset checks, as one that is executed again from their failure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from lab.sensors_lab import Location

CHECK = {"step_keys_to_execute": ["orders__out_good"]}
ALONE = {"asset_check_selection": {dg.AssetCheckKey(dg.AssetKey(["orders", "out"]), "good")}}


def check_run(location: Location, status: str, only: dict[str, Any]) -> None:
    """A run that only checks what the pipeline's last run wrote."""
    tags = location.definitions.resolve_job_def("orders").run_tags
    location.instance.add_run(dg.DagsterRun("orders", status=dg.DagsterRunStatus(status), tags=dict(tags), **only))


@pytest.mark.parametrize("only", [CHECK, ALONE])
@pytest.mark.parametrize("reason", ["user", "system"])
def test_a_check_that_fails_again_restarts_nothing(location: Location, reason: str, only: dict[str, Any]) -> None:
    """It counted as a run that failed before it began: what a user had stopped, or was drained, ran again."""
    location.write(status="stopped", trigger="available-now")
    run = location.run(status="FAILURE")
    location.begin(run=run.run_id)
    location.end("stopped", reason)
    check_run(location, "FAILURE", only)
    assert location.tick() == location.tick("conduit_lifecycle") == []
    assert location.status() == ("stopped", reason)


@pytest.mark.parametrize("status", ["STARTED", "CANCELED"])
def test_a_check_holds_up_no_start(location: Location, status: str) -> None:
    """A pipeline that the system stopped stayed away while it took, and for good once it was cancelled."""
    location.write()
    run = location.run(status="FAILURE")
    location.begin(run=run.run_id)
    location.end("stopped", "system")
    for _ in range(11):
        check_run(location, status, CHECK)
    assert [request.job_name for request in location.tick("conduit_lifecycle")] == ["orders"]


def test_a_check_delays_no_tick(location: Location, tmp_path: Path) -> None:
    location.write(trigger="{every: 90s}")
    (tmp_path / "dagster").mkdir()
    # a schedule opens Dagster's storage again, so it has to be on disk
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as location.instance:
        run = location.run(status="SUCCESS")
        location.begin(run=run.run_id)
        location.end("stopped", "system")
        location.backdate(run, timedelta(minutes=5))
        check_run(location, "STARTED", CHECK)
        repository = location.definitions.get_repository_def()
        now = datetime.now(UTC)
        with dg.build_schedule_context(location.instance, now, repository_def=repository) as context:
            ticked = repository.get_schedule_def("orders__schedule").evaluate_tick(context)
        assert len(ticked.run_requests or []) == 1
