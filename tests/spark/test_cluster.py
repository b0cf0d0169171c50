"""Pipelines on a real standalone cluster: drivers are commands of their own, executors work in other folders."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab.choice import in_matrix
from lab.jvm_options import archive_switch
from lab.spark_cluster import CONF, SparkCluster, elsewhere, running_cluster
from lab.waiting import wait_until, whole_lines

from conduit_dagster.spark.java import java_environment
from conduit_dagster.spark.spark_settings import spark_home

pytestmark = pytest.mark.slow
SECONDS = 180

_PLUGIN = """
import os, time
from pathlib import Path
from conduit_dagster.sdk import Processor, ProcessorSettings

class Gate(Processor):
    name = "gate"

    class Settings(ProcessorSettings):
        folder: str
        word: str

    def process(self, record):
        if record.after["n"] == 7 and not Path(self.settings.folder, "open").exists():
            Path(self.settings.folder, "waiting").touch()
            while not Path(self.settings.folder, "open").exists():
                time.sleep(0.02)
        record.after |= {"word": self.settings.word, "in": os.getcwd()}
        return record
"""
_PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    delivery: {strategy: exactly-once, log: records, shutdown-timeout: 5s}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in/}}
      - {id: one, type: destination, plugin: file, settings: {path: ./one.jsonl, sdk.record.format: payload/json}}
      - {id: folder, type: destination, plugin: file, settings: {path: ./folder/, sdk.record.format: payload/json}}
    processors:
      - {id: decode, plugin: json.decode, settings: {field: .Payload.After}}
      - {id: gate, plugin: gate, settings: {folder: "${FOLDER}", word: "${WORD}"}}
      - id: double
        plugin: sql
        settings: {query: "SELECT *, n * 2 AS twice FROM record", columns: "n LONG"}
    dead-letter-queue: {plugin: file, window-size: 0, settings: {path: ./dead.jsonl}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with running_cluster() as cluster:
        yield cluster


class Project:
    """A project on the cluster, and the processes that run it."""

    def __init__(self, folder: Path, cluster: SparkCluster, **conf: str) -> None:
        self.folder, self._cluster = folder, cluster
        self._runs: list[subprocess.Popen[bytes]] = []
        settings = {
            "spark": {"url": cluster.url, "conf": {**CONF, **conf}},
            "recovery": {"min-delay": "1s", "max-delay": "2s"},
        }
        (folder / "conduit.yaml").write_text(json.dumps(settings))
        for name, text in {"pipelines/p.yaml": _PIPELINE, "plugins/gate.py": _PLUGIN, "in/.none": ""}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    def append(self, *numbers: int, size: int = 0) -> None:
        """Append a record for each number; an odd hundred is no JSON, and is nacked."""
        lines = ["no JSON" if n % 200 == 100 else json.dumps({"n": n, "pad": "." * size}) for n in numbers]
        # a file that grows may be read before it has all of its lines
        whole = self.folder / "in" / f".{numbers[0]:06d}.jsonl"
        whole.write_text("\n".join([*lines, ""]))
        whole.rename(whole.with_name(whole.name[1:]))

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command; its output goes to ``log``."""
        own = {"FOLDER": str(self.folder), "WORD": "hush", "CONDUIT_SPARK_ARCHIVE": archive_switch()}
        command = [sys.executable, "-m", "conduit_dagster.cli.main", *words]
        with (self.folder / "log").open("ab") as log:
            run = subprocess.Popen(command, cwd=self.folder, env={**os.environ, **own}, stdout=log, stderr=log)
        self._runs.append(run)
        return run

    def await_said(self, text: str) -> None:
        self._await(lambda: text in self.log, f"the run says {text}")

    def await_gate(self) -> None:
        self._await((self.folder / "waiting").exists, "a task waits at the gate")

    def await_records(self, count: int) -> None:
        def delivered() -> bool:
            return min(len(self.lines("one.jsonl")), len(self.of_parts())) >= count

        self._await(delivered, f"{count} records are delivered")

    def _await(self, condition: Any, what: str) -> None:
        run = self._runs[-1]
        wait_until(condition, what, SECONDS, over=lambda: run.poll() is not None, said=lambda: self.log)

    def open_gate(self) -> None:
        (self.folder / "open").touch()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def lines(self, name: str) -> list[Any]:
        return list(map(json.loads, whole_lines(self.folder / name)))

    def of_parts(self) -> list[Any]:
        return [record for part in self.parts() for record in self.lines(str(part))]

    def parts(self) -> list[Path]:
        """Return the files of the destination that writes a folder, in order."""
        return sorted((self.folder / "folder").glob("step=*/*.jsonl"))

    def require_once(self, numbers: range) -> None:
        """Fail unless each record is delivered once to each destination, in order, or is a dead letter."""
        good = [n for n in numbers if n % 200 != 100]
        assert [record["n"] for record in self.lines("one.jsonl")] == good
        assert [record["n"] for record in self.of_parts()] == good
        assert len(self.lines("dead.jsonl")) == len(numbers) - len(good)

    def close(self) -> None:
        for run in self._runs:
            run.kill()
            run.wait(90)


@pytest.fixture
def project(tmp_path: Path, cluster: SparkCluster) -> Iterator[Project]:
    project = Project(tmp_path, cluster)
    yield project
    project.close()


def test_executors_killed_in_mid_step_lose_and_repeat_nothing(project: Project, cluster: SparkCluster) -> None:
    """And tasks have the project's plugins in another folder, and use the cores of a worker that comes later."""
    project.append(*range(5))
    run = project.start("run")
    project.await_records(5)
    before = cluster.registrations()
    cluster.start_worker("two")
    wait_until(lambda: cluster.registrations() > before, "the new worker has an executor", SECONDS)
    where = {record["in"] for record in project.lines("one.jsonl")}
    assert all(Path(folder).is_relative_to(cluster.folder) for folder in where)
    assert [(record["word"], record["twice"]) for record in project.lines("one.jsonl")][4] == ("hush", 8)
    project.append(*range(5, 500), size=40_000)
    project.await_gate()
    for process in (*cluster.python_workers(), *cluster.executors()):
        with suppress(psutil.NoSuchProcess):  # a worker ends with the one that forked it
            process.kill()
    project.open_gate()
    project.await_records(498)
    # with a task per core
    assert len(project.parts()) == 1 + 4
    project.require_once(range(500))
    stop = project.start("pipelines", "stop", "p")
    assert (stop.wait(SECONDS), run.wait(SECONDS)) == (0, 0), project.log
    cluster.kill("two")


@pytest.fixture
def impatient(tmp_path: Path, cluster: SparkCluster) -> Iterator[Project]:
    """A project whose jobs wait for executors for 20 seconds."""
    project = Project(tmp_path, cluster, **{"spark.starvation.timeout": "1s"})
    yield project
    project.close()


@in_matrix
def test_a_killed_driver_and_a_killed_master_lose_and_repeat_nothing(impatient: Project, cluster: SparkCluster) -> None:
    """And what waits for a cluster without executors says so, gives up, and goes on when the master is back."""
    impatient.append(*range(300))
    run = impatient.start("run")
    impatient.await_gate()
    run.send_signal(signal.SIGKILL)
    run.wait(90)
    impatient.open_gate()
    impatient.start("run")
    impatient.await_records(298)
    impatient.require_once(range(300))
    cluster.kill("master")
    for process in cluster.executors():
        process.kill()
    impatient.append(*range(300, 400))
    impatient.await_said("the job waits: the cluster gives no executor")
    impatient.await_said("failed, restarting")
    assert "spark.no_executors" in impatient.log
    cluster.start_master()
    impatient.await_records(398)
    impatient.require_once(range(400))


_SUBMITTED = """
from conduit_dagster.spark.session import SparkSettings, default_url, open_session

context = open_session(SparkSettings(default_url(lasting=True)), "submitted").sparkContext
print(context.master, context.getConf().get("spark.driver.host"))
"""


def test_spark_submit_to_a_cluster_keeps_where_workers_reach_the_driver(tmp_path: Path, cluster: SparkCluster) -> None:
    script = tmp_path / "submitted.py"
    script.write_text(_SUBMITTED)
    conf = {**CONF, "spark.driver.host": "localhost"}
    pairs = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.url, *pairs, str(script)]
    env = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.stdout == f"{cluster.url} localhost\n", done.stderr


def test_workers_whose_python_lacks_the_package_are_said(tmp_path: Path, cluster: SparkCluster) -> None:
    venv.create(tmp_path / "bare")
    conf = {"spark.pyspark.python": str(tmp_path / "bare" / "bin" / "python"), "spark.task.maxFailures": "1"}
    project = Project(tmp_path, cluster, **conf)
    assert project.start("doctor", "--deep").wait(SECONDS) == 3
    assert "the Python of Spark's workers can't run the pipeline: ModuleNotFoundError: No module named" in project.log
    assert "Traceback" not in project.log


@pytest.fixture
def everywhere(tmp_path: Path, cluster: SparkCluster) -> Iterator[Project]:
    """A project whose first job waits for two workers, and has a task for each of their cores."""
    conf = {"spark.cores.max": "4", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    project = Project(tmp_path, cluster, **conf, **{"spark.scheduler.maxRegisteredResourcesWaitingTime": "60s"})
    project.open_gate()
    yield project
    project.close()


@in_matrix
def test_a_worker_without_the_shared_folder_is_told_before_anything_refers_to_its_files(
    everywhere: Project, cluster: SparkCluster
) -> None:
    home = everywhere.folder / ".conduit"
    home.mkdir(0o700)
    if subprocess.run([*elsewhere(home), "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    everywhere.append(*range(500), size=40_000)
    cluster.start_worker("apart", lacks=home)
    assert everywhere.start("doctor", "--deep").wait(SECONDS) != 0
    assert re.search(r"has not the \S+/\.conduit/staging and \S+/log of this machine", everywhere.log)
    assert everywhere.start("run", "--once").wait(SECONDS) == 1
    assert "error spark.not_shared" in everywhere.log
    cluster.kill("apart")
    cluster.start_worker("two")
    assert everywhere.start("run", "--once").wait(SECONDS) == 0, everywhere.log
    cluster.kill("two")
    everywhere.require_once(range(500))


@in_matrix
def test_a_dry_run_with_sql_gives_up_without_executors(impatient: Project, cluster: SparkCluster) -> None:
    cluster.kill("one")
    impatient.append(1)
    impatient.open_gate()
    assert impatient.start("dry-run", "pipelines/p.yaml").wait(SECONDS) == 1
    assert "gave no executor for 20 s" in impatient.log
    cluster.start_worker("one")
