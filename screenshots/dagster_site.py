"""Dagster for a project: web server, daemon and code server, as ``dagster dev`` starts them, and runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import dagster as dg
import psutil
from dagster_graphql import DagsterGraphQLClient

from conduit_dagster.processes import end, free_port, started_at
from conduit_dagster.spark.server import stop_server
from screenshots.waiting import wait_until

_ROOT = Path(__file__).parents[1]
_HOST = "127.0.0.1"
_SECONDS = 240.0
_ENDED = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}


class Site:
    """A Dagster that is up."""

    def __init__(self, root: Path, port: int) -> None:
        self.url = f"http://{_HOST}:{port}"
        self._root = root
        self._client = DagsterGraphQLClient(_HOST, port_number=port)

    def launch(self, job: str) -> str:
        """Start a run; return its id."""
        return self._client.submit_job_execution(job)

    def wait_for(self, run: str) -> None:
        """Wait until a run has ended, however it did."""
        self._wait(lambda: self._client.get_run_status(run) in _ENDED, f"run {run} ends")

    def wait_for_restart(self, job: str) -> None:
        """Wait until a run of a job that failed at first has succeeded."""
        done = dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.SUCCESS])
        with dg.DagsterInstance.from_config(str(self._root / "dagster")) as instance:
            self._wait(lambda: instance.get_runs_count(done), f"{job} is restarted, and succeeds")

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what, _SECONDS, lambda: said(self._root))


@contextmanager
def dagster_site(root: Path) -> Generator[Site]:
    """Start Dagster for the project; end it with all that it started, the Spark server included."""
    port = free_port()
    process = _started(root, port)
    try:
        wait_until(lambda: _is_up(root, process, port), "Dagster answers", _SECONDS, lambda: said(root))
        yield Site(root, port)
    finally:
        _end(process)
        stop_server(root / ".conduit")


def said(root: Path) -> str:
    """Return the end of Dagster's log."""
    return (root / "dagster.log").read_text(errors="replace")[-4000:]


def _started(root: Path, port: int) -> subprocess.Popen[bytes]:
    home = root / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text((_ROOT / "dagster.yaml").read_text().replace(".conduit/", f"{root}/"))
    with (root / "dagster.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-w", str(_ROOT / "workspace.yaml"), "-h", _HOST, "-p", str(port)],
            cwd=root,
            env=_environment(home),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _environment(home: Path) -> dict[str, str]:
    """Return the caller's without its settings for other projects; no warm process stays behind."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CONDUIT_")}
    return {**own, "DAGSTER_HOME": str(home), "PYTHONPATH": str(_ROOT), "CONDUIT_WARM_SECONDS": "0"}


def _is_up(root: Path, process: subprocess.Popen[bytes], port: int) -> bool:
    if process.poll() is not None:
        raise ChildProcessError(f"Dagster has ended\n{said(root)}")
    try:
        with urlopen(f"http://{_HOST}:{port}/server_info", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Dagster, and by id what of its processes is left: its code server does not always end when asked."""
    try:
        family = [(child.pid, started_at(child.pid)) for child in psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid, started in family:
        if started is not None:
            end(pid, started, 10)
