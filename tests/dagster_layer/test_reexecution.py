"""Re-execution in Dagster of a run that the recovery sensor had launched: it has that run's tags."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder

from conduit_dagster.assets.run_origin import FAILURE_TAG, RESTART_TAG
from conduit_dagster.config.project import Project
from conduit_dagster.definitions import define


def numbers() -> dg.JobDefinition:
    return define(Project.find(Path.cwd(), {})).resolve_job_def("numbers")


def test_a_restart_that_is_executed_again_is_a_start_by_hand(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure is over: as a restart it would end without a word, and succeed."""
    folder.numbers()
    monkeypatch.chdir(folder.root)
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        tags = {**numbers().run_tags, FAILURE_TAG: "3", RESTART_TAG: "1"}
        failed = instance.create_run_for_job(numbers(), tags=tags, status=dg.DagsterRunStatus.FAILURE)
        again = dg.ReexecutionOptions(failed.run_id)
        # the UI gives a run that is executed again the tags of the first one
        job = dg.reconstructable(numbers)
        with dg.execute_job(job, instance, tags=tags, reexecution_options=again) as result:
            assert result.success
    assert folder.delivered == folder.passed(range(100))
