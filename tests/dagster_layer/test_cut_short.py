"""A drain in a run of more than the pipeline's own job that is ended early: what is behind it does not run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder
from lab.waiting import wait_until

from conduit_dagster.config.project import Project
from conduit_dagster.engine.operate.subject import subject
from conduit_dagster.recovery.classify import from_dagster
from conduit_dagster.state.overview import source_rows

pytestmark = pytest.mark.usefixtures("spark")

RECORDS = 2000


def job(folder: Folder) -> dg.JobDefinition:
    """A job of the pipeline and of a user's asset behind it; the pipeline takes some time."""
    folder.numbers(RECORDS)
    numbers = folder.root / "pipelines" / "numbers.yaml"
    numbers.write_text(numbers.read_text() + "    delivery: {batch-size: 1}\n")

    @dg.asset(deps=[dg.AssetKey(["numbers", "out"])])
    def report() -> None:
        """Count what was delivered."""

    selection = dg.AssetSelection.groups("numbers") | dg.AssetSelection.assets("report")
    both = dg.define_asset_job("both", selection=selection, executor_def=dg.in_process_executor)
    more = dg.Definitions(assets=[report], jobs=[both])
    return dg.Definitions.merge(folder.definitions, more).resolve_job_def("both")


def moved(folder: Folder) -> bool:
    return any(row["records"] for row in source_rows(folder.store, "numbers"))


@contextmanager
def once_moving(folder: Folder, then: Callable[[], object]) -> Iterator[None]:
    """Do something once the first record has moved."""

    def work() -> None:
        wait_until(lambda: moved(folder), "a record has moved", 120)
        then()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result(120)


def failed_with(result: dg.ExecuteInProcessResult) -> list[str]:
    """The codes of the steps that failed."""
    found = list[str]()
    for event in result.all_events:
        if event.is_step_failure:
            data: Any = event.step_failure_data
            about = {name: value.value for name, value in data.user_failure_data.metadata.items()}
            found.append(str(from_dagster(about, data.error.cls_name, data.error.to_string()).code))
    return found


def test_nothing_runs_behind_a_pipeline_that_was_stopped_before_it_was_drained(folder: Folder) -> None:
    both = job(folder)
    with once_moving(folder, lambda: subject(Project.find(folder.root, {}), "numbers").stop("operator")):
        result = both.execute_in_process(instance=folder.instance, raise_on_error=False)
    assert failed_with(result) == ["pipeline.cut_short"]
    assert folder.instance.get_latest_materialization_event(dg.AssetKey("report")) is None
    assert 0 < folder.newest("numbers", "acks")["records_read"] < RECORDS
    assert folder.status("numbers") == ("stopped", "user")


def test_a_signal_ends_all_of_a_run(folder: Folder) -> None:
    """It ended the pipeline's step, which succeeded; all others began."""
    both = job(folder)
    with once_moving(folder, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        result = both.execute_in_process(instance=folder.instance, raise_on_error=False)
    assert not result.success
    assert folder.instance.get_latest_materialization_event(dg.AssetKey("report")) is None
    assert folder.status("numbers") == ("stopped", "system")


def test_a_drain_whose_time_is_over_has_ended_as_asked(folder: Folder) -> None:
    both = job(folder)
    config = {"ops": {"numbers__run": {"config": {"end_after": "1ms"}}}}
    assert both.execute_in_process(config, folder.instance, raise_on_error=False).success
    assert folder.instance.get_latest_materialization_event(dg.AssetKey("report")) is not None
