"""A real Spark standalone cluster for tests: a master, and workers of two cores each, as processes on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from conduit_dagster.processes import is_up
from conduit_dagster.spark.class_data import archive_options
from conduit_dagster.spark.java import java_environment
from conduit_dagster.spark.spark_settings import spark_home

from .jvm_options import SHORT_LIVED
from .server_process import free_port, guard_of
from .waiting import wait_until

_OPTIONS = " ".join([*archive_options({}), SHORT_LIVED])
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _OPTIONS,
    "spark.driver.host": "127.0.0.1",
}
"""Settings of the applications: ``spark.conf`` of a project."""
_ROOT = Path(__file__).parents[2]


class SparkCluster:
    """A master and the worker ``one``; call ``close`` at the end. Workers' folders are not those of any project."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="conduit-cluster-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._guards: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        try:
            self.start_master()
            self.start_worker("one")
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The master's URL."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def folder(self) -> Path:
        """Folder of logs, and of the workers' files: executors work there."""
        return self._folder

    def start_master(self) -> None:
        """Start the master and wait until it listens."""
        master = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", str(self._port))
        self._await("master", lambda: is_up(master.pid, self._port))

    def start_worker(self, name: str, lacks: Path | None = None) -> None:
        """Start a worker and wait until the master has it. ``lacks``: a folder in whose place it has another one."""
        work = str(self._folder / name / "work")
        own = ["--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--work-dir", work]
        self._start(name, "worker.Worker", *own, self.url, lacks=lacks)
        self._await(name, lambda: "Successfully registered with master" in self._log(name))

    def kill(self, name: str) -> None:
        """Kill a worker or the ``master``, like a crash."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(60)

    def registrations(self) -> int:
        """Return how many executors have registered with a driver so far."""
        logs = self._folder.glob("*/work/*/*/stderr")
        return sum("Successfully registered with driver" in log.read_text() for log in logs)

    def executors(self) -> list[psutil.Process]:
        """Return the executors at work."""
        found = [psutil.Process(process.pid).children(recursive=True) for process in self._processes.values()]
        return [child for children in found for child in children if _is_executor(child)]

    def python_workers(self) -> list[psutil.Process]:
        """Return the Python processes of executors that run tasks: not their parents, which fork them."""
        found = [child for executor in self.executors() for child in executor.children(recursive=True)]
        return [child for child in found if not child.children()]

    def close(self) -> None:
        """End the cluster and remove its files."""
        for executor in self.executors():
            executor.kill()
        for name in list(self._processes):
            self.kill(name)
        for guard in self._guards:
            guard.kill()
            guard.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, name: str, main: str, *words: str, lacks: Path | None = None) -> subprocess.Popen[bytes]:
        (self._folder / name).mkdir(exist_ok=True)
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", "--webui-port", "0"]
        if lacks is not None:
            command = [*elsewhere(lacks), *command]
        with self._log_of(name).open("wb") as log:
            # a session of its own: Ctrl-C in the terminal must only reach the tests, which end the cluster themselves
            process = subprocess.Popen(
                [*command, *words], cwd=self._folder / name, env=_environment(), stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._processes[name] = process
        self._guards.append(guard_of(process.pid, signal.SIGKILL))
        return process

    def _await(self, name: str, condition: Callable[[], object]) -> None:
        process = self._processes[name]
        wait_until(
            condition, f"{name} is up", 240, over=lambda: process.poll() is not None, said=lambda: self._log(name)
        )

    def _log_of(self, name: str) -> Path:
        return self._folder / name / "log"

    def _log(self, name: str) -> str:
        return self._log_of(name).read_text()


def elsewhere(folder: Path) -> list[str]:
    """Return the words before a command for which an empty file system lies over ``folder``, as on another machine."""
    return ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]


def _environment() -> dict[str, str]:
    # executors inherit PYTHONPATH: there the package is installed, in a checkout it is not
    own = {"PYTHONPATH": str(_ROOT), "SPARK_HOME": str(spark_home()), "SPARK_DAEMON_MEMORY": "128m"}
    own["SPARK_DAEMON_JAVA_OPTS"] = f"{_OPTIONS} -Dspark.master.rest.enabled=false -Dspark.ui.enabled=false"
    return {**os.environ, **java_environment(), **own}


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


@contextmanager
def running_cluster() -> Generator[SparkCluster]:
    """Run a cluster within the context."""
    cluster = SparkCluster()
    try:
        yield cluster
    finally:
        cluster.close()
