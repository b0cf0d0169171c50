"""A continuous run that is ended from outside finishes its step, whoever ended it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster_layer.project_folder import Folder

from conduit_dagster.state.overview import source_rows
from conduit_dagster.state.schema import steps

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


class Live:
    """A ``dagster`` process that runs the pipeline ``numbers``, and Dagster's own storage beside it."""

    def __init__(self, folder: Folder, instance: dg.DagsterInstance, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.instance, self.process = folder, instance, process

    @property
    def run(self) -> dg.DagsterRun:
        (run,) = self.instance.get_runs()
        return run

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail((self.folder.root / "dagster.log").read_text()[-4000:])
            time.sleep(0.1)

    def moved(self) -> bool:
        return any(row["records"] for row in source_rows(self.folder.store, "numbers"))

    def acked(self) -> int:
        return sum(row["records"] for row in source_rows(self.folder.store, "numbers"))

    def open_steps(self) -> int:
        with self.folder.store.connect() as connection:
            rows = sa.select(steps.c.step).where(steps.c.state.in_(("planned", "prepared")))
            return len(connection.execute(rows).all())

    def delivered(self) -> int:
        lines = len((self.folder.root / "out.jsonl").read_text().splitlines())
        return lines + len((self.folder.root / "dead.jsonl").read_text().splitlines())


@pytest.fixture
def live(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """Running, with 100 records moved and more to come."""
    folder.numbers(trigger="continuous")
    home = folder.root / "dagster"
    home.mkdir()
    (home / "dagster.yaml").touch()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = Path(sys.executable).parent / "dagster"
    command = [str(program), "job", "execute", "-m", "conduit_dagster.definitions", "-j", "numbers"]
    with (folder.root / "dagster.log").open("wb") as log:
        # a shell without job control leaves SIGINT ignored, which Dagster takes for SIGTERM too
        process = subprocess.Popen(command, cwd=folder.root, stdout=log, stderr=log, start_new_session=True)
    try:
        running = Live(folder, dg.DagsterInstance.get(), process)
        running.until(running.moved)
        folder.append(range(100, 20_000))
        yield running
    finally:
        process.kill()
        process.wait()


def test_a_terminated_run_drains_and_ends_as_cancelled(live: Live) -> None:
    """What Dagster's launcher does on "Terminate": it notes it and interrupts the worker."""
    live.instance.report_run_canceling(live.run)
    live.process.send_signal(signal.SIGINT)
    live.process.wait(60)
    assert live.run.status is dg.DagsterRunStatus.CANCELED
    assert live.folder.status("numbers") == ("stopped", "user")
    assert live.open_steps() == 0
    assert live.delivered() == live.acked() - _filtered(live)


def test_a_signal_of_the_system_drains_and_the_pipeline_may_come_back(live: Live) -> None:
    live.process.send_signal(signal.SIGTERM)
    assert live.process.wait(60) == 0
    assert live.run.status is dg.DagsterRunStatus.SUCCESS
    assert live.folder.status("numbers") == ("stopped", "system")
    assert live.open_steps() == 0
    assert live.delivered() == live.acked() - _filtered(live)


def test_the_numbers_of_the_end_are_in_dagster(live: Live) -> None:
    live.instance.report_run_canceling(live.run)
    os.kill(live.process.pid, signal.SIGINT)
    live.process.wait(60)
    event = live.instance.get_latest_materialization_event(dg.AssetKey(["numbers", "acks"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["records_read"].value == live.acked()


def _filtered(live: Live) -> int:
    return sum(row["filtered"] for row in source_rows(live.folder.store, "numbers"))
