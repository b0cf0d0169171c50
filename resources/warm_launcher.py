"""Launcher of Dagster's runs from a process that has Dagster, this package and Spark's client already imported."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, cast

from dagster import DagsterRun, DefaultRunLauncher
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._core.origin import JobPythonOrigin
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import serialize_value

from conduit_dagster.processes import is_dead, is_running
from conduit_dagster.warm.client import ForkedProcess, NotWarmError, spawn
from conduit_dagster.warm.protocol import FOLDER_TAG, ForkRequest

_OURS = "conduit/pipeline"
_WORKER = ".dagster/conduit_worker"
"""Tag of a run: its process, as returned by :func:`conduit_dagster.processes.identity`."""
_HERE = ("", "localhost", "127.0.0.1")


class WarmRunLauncher(DefaultRunLauncher):
    """Dagster's default launcher, except that pipelines' runs on this machine start three seconds sooner.

    ``run_launcher: {module: conduit_dagster.resources.launcher, class: WarmRunLauncher}`` in ``dagster.yaml``. Such a
    run has the environment of the process that launches it (daemon or web server), not the code server's. Every other
    run, and every run without a warm process, is launched by :class:`dagster.DefaultRunLauncher`.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run. Raises the errors of Dagster's own launcher."""
        if not self._launched(context):
            super().launch_run(context)

    def _launched(self, context: LaunchRunContext) -> bool:
        """Return whether a warm process has the run; if not, no process has it."""
        origin, run_id = context.job_code_origin, context.dagster_run.run_id
        if origin is None or not self._is_here(context):
            return False
        try:
            with self._spawn(context.dagster_run, origin) as child:
                # a run that is executed again has its parent's tags
                theirs = {GRPC_INFO_TAG: ""} if context.dagster_run.tags.get(GRPC_INFO_TAG) else {}
                self._instance.add_run_tags(run_id, {_WORKER: json.dumps(child.process), **theirs})
                child.begin()
        except NotWarmError:
            return False
        self._run_ids.add(run_id)
        return True

    def terminate(self, run_id: str) -> bool:
        """Interrupt the run's process, which drains; the run is cancelled."""
        run = self._instance.get_run_by_id(run_id)
        worker = None if run is None else _worker(run)
        if run is None or worker is None:
            return super().terminate(run_id)
        if run.is_finished or not is_running(worker):
            return False
        self._instance.report_run_canceling(run)
        os.kill(worker["pid"], signal.SIGINT)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: no parent waits for the process, so Dagster's run monitoring detects one that was killed."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Return the health of a run; RUNNING if it can't be checked, as for another launcher's or machine's."""
        worker = _worker(run)
        if worker is None or not is_dead(worker):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(
            WorkerStatus.FAILED, f"process {worker['pid']} has ended without reporting a result"
        )

    @staticmethod
    def _is_here(context: LaunchRunContext) -> bool:
        """Return whether the run is a pipeline's and its code location is on this machine."""
        origin = context.dagster_run.remote_job_origin
        if _OURS not in context.dagster_run.tags or origin is None or context.workspace is None:
            return False
        name = origin.repository_origin.code_location_origin.location_name
        # a location without a client is not on a code server
        client: Any = getattr(context.workspace.get_code_location(name), "client", None)
        return client is not None and (client.host or "") in _HERE

    def _spawn(self, run: DagsterRun, origin: JobPythonOrigin) -> ForkedProcess:
        code = origin.repository_origin
        args = ExecuteRunArgs(origin, run.run_id, self._instance.get_ref(), set_exit_code_on_failure=True)
        told = run.tags.get(FOLDER_TAG, "")
        # of a run that is executed again its first one's: the project may have been moved since
        own = getattr(code.code_pointer, "working_directory", None) or str(Path.cwd())
        folder = told if Path(told).is_absolute() and Path(told).is_dir() else own
        words = ["api", "execute_run", serialize_value(cast("Any", args))]
        wanted = ForkRequest("dagster", words, folder, dict(os.environ), own_session=True)
        with Path(os.devnull).open("rb") as nothing:
            return spawn("runs", wanted, [nothing.fileno(), 1, 2], code.executable_path)


def _worker(run: DagsterRun) -> dict[str, Any] | None:
    """Return the run's process; None if the code server has the run, even if a warm process was intended."""
    tag = run.tags.get(_WORKER)
    return None if tag is None or run.tags.get(GRPC_INFO_TAG) else json.loads(tag)
