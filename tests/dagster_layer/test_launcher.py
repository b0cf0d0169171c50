"""Runs from a warm process, and from Dagster's code server if there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster_layer.project_folder import Folder
from dagster_layer.web import launch, web_server
from lab.waiting import wait_until

from conduit_dagster.processes import identity, is_dead, is_running
from conduit_dagster.resources.warm_launcher import WarmRunLauncher

LAUNCHER = """
run_launcher: {module: conduit_dagster.resources.launcher, class: WarmRunLauncher}
run_coordinator: {module: dagster._core.run_coordinator.default_run_coordinator, class: DefaultRunCoordinator}
"""
SECONDS = 180

pytestmark = pytest.mark.slow


PRIVATE = [
    ("dagster._core.launcher.base", "WorkerStatus"),
    ("dagster._core.origin", "JobPythonOrigin"),
    ("dagster._core.storage.tags", "GRPC_INFO_TAG"),
    ("dagster._grpc.types", "ExecuteRunArgs"),
    ("dagster._serdes", "serialize_value"),
]
"""Names of Dagster's that warm runs need, and that another version may not have."""


@contextmanager
def storage(folder: Folder) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(folder.root / "dagster")) as instance:
        yield instance


def ended(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    wait_until(lambda: found(instance, run_id).is_finished, "the run ended", SECONDS)
    return found(instance, run_id)


def found(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def worker(run: dg.DagsterRun) -> dict[str, Any]:
    return json.loads(run.tags[".dagster/conduit_worker"])


@pytest.mark.usefixtures("connected")
def test_a_run_comes_from_a_warm_process_and_can_be_terminated(folder: Folder) -> None:
    folder.numbers(trigger="continuous")
    with web_server(folder, LAUNCHER) as url, storage(folder) as instance:
        launcher = instance.run_launcher
        assert isinstance(launcher, WarmRunLauncher)
        run_id = launch(url, "numbers")
        wait_until(lambda: (folder.root / "out.jsonl").exists(), "records arrive", SECONDS)
        run = found(instance, run_id)
        assert GRPC_INFO_TAG not in run.tags
        assert is_running(worker(run))
        assert launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING
        assert launcher.terminate(run_id)
        assert ended(instance, run_id).status == dg.DagsterRunStatus.CANCELED
        wait_until(lambda: is_dead(worker(run)), "its process ended", SECONDS)
        # it has ended: there is nothing to terminate, and Dagster's monitoring is told so
        assert not launcher.terminate(run_id)
        assert launcher.check_run_worker_health(run).status == WorkerStatus.FAILED


@pytest.mark.usefixtures("connected")
def test_a_run_has_the_folder_in_which_its_code_location_was_loaded(folder: Folder) -> None:
    """Dagster's working directory of a location is where its modules are found, and no process is started there."""
    folder.numbers()
    (folder.root / "src").mkdir()
    with web_server(folder, LAUNCHER, "-d", "src") as url, storage(folder) as instance:
        run = ended(instance, launch(url, "numbers"))
        assert run.status == dg.DagsterRunStatus.SUCCESS
        assert worker(run), "it came from a warm process"
    assert len(folder.delivered) == 40


@pytest.mark.usefixtures("connected")
def test_where_nobody_is_warm_dagster_launches_it(folder: Folder) -> None:
    folder.numbers()
    with web_server(folder, LAUNCHER, CONDUIT_WARM_SECONDS="0") as url, storage(folder) as instance:
        run = ended(instance, launch(url, "numbers"))
        assert run.status == dg.DagsterRunStatus.SUCCESS
        assert len((folder.root / "out.jsonl").read_text().splitlines()) == 40
        assert ".dagster/conduit_worker" not in run.tags
        assert GRPC_INFO_TAG in run.tags
        assert instance.run_launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING
        assert not instance.run_launcher.terminate(run.run_id)


def test_a_run_that_is_executed_again_is_not_taken_for_that_of_the_code_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its parent's tags: a killed one seemed to run for ever, and could not be terminated."""

    @dg.job
    def empty() -> None: ...

    (tmp_path / "dagster.yaml").write_text(LAUNCHER)
    with subprocess.Popen(["sleep", "60"]) as process, dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        child = nullcontext(SimpleNamespace(process=identity(process.pid), begin=lambda: None))
        monkeypatch.setattr(WarmRunLauncher, "_is_here", staticmethod(lambda _: True))
        monkeypatch.setattr(WarmRunLauncher, "_spawn", lambda *_: child)
        run = instance.create_run_for_job(empty, tags={GRPC_INFO_TAG: '{"host": "localhost"}'})
        instance.run_launcher.launch_run(cast("Any", SimpleNamespace(job_code_origin="its code", dagster_run=run)))
        process.kill()
        process.wait()
        health = instance.run_launcher.check_run_worker_health(found(instance, run.run_id))
    assert health.status == WorkerStatus.FAILED


WITHOUT = """
import importlib, os
import dagster

with dagster.DagsterInstance.from_config({root!r}) as instance:
    for module, name in {private}:
        if not os.fork():
            delattr(importlib.import_module(module), name)
            print(module, name, type(instance.run_launcher).__name__, flush=True)
            os._exit(0)
        os.wait()
"""


def test_without_a_private_name_dagster_launches_all_runs(folder: Folder) -> None:
    (folder.root / "dagster.yaml").write_text(LAUNCHER)
    code = WITHOUT.format(private=PRIVATE, root=str(folder.root))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = [f"{module} {name} DefaultRunLauncher" for module, name in PRIVATE]
    assert [line for line in done.stdout.splitlines() if line.startswith("dagster.")] == expected, done.stderr
