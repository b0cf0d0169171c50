"""A continuous run that is ended from outside finishes its step, whoever ended it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster_layer.project_folder import SETTINGS, Folder
from lab.waiting import wait_until

from conduit_dagster.state.overview import source_rows
from conduit_dagster.state.tables import steps

ROOT = Path(__file__).parents[2]
SECONDS = 150
"""Limit for a run's end: it finishes its step, and its process and JVM end."""

pytestmark = pytest.mark.slow


class Live:
    """A ``dagster`` process that runs the pipeline ``numbers``, and Dagster's own storage beside it."""

    def __init__(self, folder: Folder, instance: dg.DagsterInstance, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.instance, self.process = folder, instance, process

    @property
    def run(self) -> dg.DagsterRun:
        (run,) = self.instance.get_runs()
        return run

    def wait_until_moved(self) -> None:
        wait_until(
            self.moved,
            "records are moved",
            240,
            over=lambda: self.process.poll() is not None,
            said=lambda: (self.folder.root / "dagster.log").read_text()[-4000:],
        )

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


@contextmanager
def started(root: Path, settings: dict[str, str]) -> Iterator[Live]:
    """Running, with 100 records moved and more to come. ``settings``: of its environment."""
    home = root / "dagster"
    home.mkdir()
    (home / "dagster.yaml").touch()
    with pytest.MonkeyPatch.context() as patch:
        for name in SETTINGS:
            patch.delenv(name, raising=False)
        patch.setenv("DAGSTER_HOME", str(home))
        patch.setenv("PYTHONPATH", str(ROOT))
        for name, value in settings.items():
            patch.setenv(name, value)
        instance = dg.DagsterInstance.get()
        folder = Folder(root, instance)
        folder.numbers(trigger="continuous")
        with _process(folder) as process:
            live = Live(folder, instance, process)
            live.wait_until_moved()
            folder.append(range(100, 20_000))
            yield live


@contextmanager
def _process(folder: Folder) -> Iterator[subprocess.Popen[bytes]]:
    program = Path(sys.executable).parent / "dagster"
    command = [str(program), "job", "execute", "-m", "conduit_dagster.definitions", "-j", "numbers"]
    with (folder.root / "dagster.log").open("wb") as log:
        # a shell without job control leaves SIGINT ignored, which Dagster takes for SIGTERM too
        process = subprocess.Popen(command, cwd=folder.root, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def terminated(tmp_path_factory: pytest.TempPathFactory, connect_server: Any) -> Iterator[Live]:
    """What Dagster's launcher does on "Terminate": it records it and interrupts the worker. The run has ended."""
    with started(tmp_path_factory.mktemp("terminated"), connect_server.settings) as live:
        live.instance.report_run_canceling(live.run)
        live.process.send_signal(signal.SIGINT)
        live.process.wait(SECONDS)
        yield live


def _is_drained(live: Live) -> None:
    """Every record of the begun steps is where it belongs; there was more to read than that."""
    assert live.open_steps() == 0
    assert live.delivered() == live.acked() - _filtered(live)
    assert live.acked() >= 100


def test_a_terminated_run_drains_and_ends_as_cancelled(terminated: Live) -> None:
    assert terminated.run.status is dg.DagsterRunStatus.CANCELED
    assert terminated.folder.status("numbers") == ("stopped", "user")
    _is_drained(terminated)


def test_a_signal_of_the_system_drains_and_the_pipeline_may_come_back(tmp_path: Path) -> None:
    with started(tmp_path, {"CONDUIT_SPARK_URL": "local[2]"}) as live:
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(SECONDS) == 0
        assert live.run.status is dg.DagsterRunStatus.SUCCESS
        assert live.folder.status("numbers") == ("stopped", "system")
        _is_drained(live)


def test_the_numbers_of_the_end_are_in_dagster(terminated: Live) -> None:
    live = terminated
    event = live.instance.get_latest_materialization_event(dg.AssetKey(["numbers", "acks"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["records_read"].value == live.acked()


def _filtered(live: Live) -> int:
    return sum(row["filtered"] for row in source_rows(live.folder.store, "numbers"))
