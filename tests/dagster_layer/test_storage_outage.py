"""Dagster's storage is away for a moment, as in a failover of its PostgreSQL: the run shows what its pipeline did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder

from conduit_dagster.assets.run_reporter import RunReporter
from conduit_dagster.engine.report import RunProgress, RunResult
from conduit_dagster.engine.restart_loop import RestartLoop
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.policy import PipelineStatus

pytestmark = pytest.mark.usefixtures("spark")


class Outage:
    """Calls of an instance's storage fail during an outage, which ends after some of them."""

    def __init__(self, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        for name in ("handle_new_event", "get_run_record_by_id"):
            monkeypatch.setattr(instance, name, self._failing(getattr(instance, name)))

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*words: Any, **options: Any) -> Any:
            if self.left > 0:
                self.left -= 1
                raise OSError("the storage does not answer")
            return call(*words, **options)

        return called


def _before(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Let the outage begin with the pipeline."""
    outage, begin = Outage(folder.instance, monkeypatch), RunReporter.begin

    def begun(reporter: RunReporter) -> None:
        outage.left = 1
        begin(reporter)

    monkeypatch.setattr(RunReporter, "begin", begun)
    return lambda: outage.left == 0


def _after(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Let the outage begin when the pipeline has ended."""
    outage, once = Outage(folder.instance, monkeypatch), RestartLoop.once

    def ended(loop: RestartLoop, *words: Any) -> RunResult:
        result = once(loop, *words)
        outage.left = 2
        return result

    monkeypatch.setattr(RestartLoop, "once", ended)
    return lambda: outage.left == 0


@pytest.mark.parametrize("outage", [_before, _after])
def test_a_run_that_drains_succeeds(folder: Folder, monkeypatch: pytest.MonkeyPatch, outage: Any) -> None:
    monkeypatch.setattr("conduit_dagster.assets.run_reporter._STORAGE_PAUSE", 0.0)
    folder.numbers()
    is_over = outage(folder, monkeypatch)
    assert folder.run().success
    assert is_over()
    acks = folder.newest("numbers", "acks")
    assert (acks["records_read"], acks["records_acked"]) == (100, 90)


def test_a_run_whose_pipeline_fails_tells_its_error(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that of the storage."""
    monkeypatch.setattr("conduit_dagster.assets.run_reporter._STORAGE_PAUSE", 0.0)
    error = FatalError("too many", code="nacks.threshold_exceeded", fix="fewer")
    failed = RunResult("numbers", PipelineStatus.DEGRADED, "", error, RunProgress())
    monkeypatch.setattr(RestartLoop, "once", lambda *_: failed)
    folder.numbers()
    _after(folder, monkeypatch)
    (event,) = [event for event in folder.run().all_events if event.is_step_failure]
    told = event.step_failure_data.user_failure_data
    assert told is not None
    assert told.metadata["conduit/error_code"].value == error.code
