"""What Dagster shows of a pipeline's checks after another run of it was launched, which was refused or left out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder
from lab.waiting import wait_until

from conduit_dagster.cli.main import main

pytestmark = pytest.mark.usefixtures("spark")
ACKS, DEAD = dg.AssetKey(["numbers", "acks"]), dg.AssetKey(["numbers", "dead_letters"])
LETTERS, STATUS = dg.AssetCheckKey(DEAD, "no_dead_letters"), dg.AssetCheckKey(ACKS, "status")


@pytest.fixture
def running(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A continuous run that has delivered what there is, none of it a dead letter."""
    monkeypatch.chdir(folder.root)
    folder.numbers(3, trigger="continuous")
    with _running(folder):
        yield folder


@contextmanager
def _running(folder: Folder) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(folder.run, end_after="280s", materialize_every="50ms")
        wait_until(lambda: _shown(folder, LETTERS) == (True, "none is open"), "it has begun", over=run.done)
        try:
            yield
        finally:
            assert (main(("pipelines", "stop", "numbers")), run.result().success) == (0, True)
    assert _shown(folder, STATUS) == (True, "stopped")


def _shown(folder: Folder, check: dg.AssetCheckKey) -> tuple[bool, str | None] | None:
    """The newest execution of a check; None if it has no result."""
    record = folder.instance.event_log_storage.get_latest_asset_check_execution_by_key([check]).get(check)
    evaluation = None if record is None else record.evaluation
    return (evaluation.passed, evaluation.description) if isinstance(evaluation, dg.AssetCheckEvaluation) else None


def test_a_run_that_was_refused_hides_nothing_that_the_run_at_work_finds(running: Folder) -> None:
    assert not running.run().success
    assert _shown(running, LETTERS) == (True, "none is open")
    running.append(range(3, 4))
    opened = (False, "1 open: conduit-dagster dlq list numbers")
    wait_until(lambda: _shown(running, LETTERS) == opened, "the dead letter is shown")


def test_a_run_that_was_left_out_behind_a_failure_hides_nothing(running: Folder) -> None:
    """Dagster calls the checks that it was to evaluate failed."""
    job = running.definitions.resolve_job_def("numbers")
    left_out = running.instance.create_run_for_job(job)
    running.instance.report_run_failed(left_out)
    wait_until(lambda: _shown(running, LETTERS) == (True, "none is open"), "the result is shown again")
