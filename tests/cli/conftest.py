"""Projects in temporary folders, and commands run in them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.as_owner import ERROR, owned
from lab.scripted import Script
from lab.support import Lab
from lab.terminal import Terminal
from lab.verbs import Ran, run_here
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.cli import running, verb_session
from conduit_dagster.state.connector_registrations import SourceUnit
from conduit_dagster.state.status_store import RunStart

PIPELINE = """
version: "2.2"
pipelines:
  - id: {id}
    {extra}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: ./in.jsonl}}}}
      - id: out
        type: destination
        plugin: file
        settings: {{path: ./{id}.jsonl, sdk.record.format: payload/json}}
    processors:
      - {{id: decode, plugin: json.decode, settings: {{field: .Payload.After}}}}
    dead-letter-queue:
      plugin: file
      window-size: 0
      settings: {{path: ./{id}-dead.jsonl}}
"""


def _pipeline(name: str = "orders", extra: str = "status: running") -> str:
    return PIPELINE.format(id=name, extra=extra)


Run = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's working folder, outside of any project and without the caller's settings."""
    for name in [name for name in os.environ if name.startswith("CONDUIT_")]:
        monkeypatch.delenv(name)
    # a command that needs Spark, in this process, neither joins nor leaves a server: tests after it want one session
    monkeypatch.setenv("CI", "true")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(folder: Path) -> Path:
    """A project with one good pipeline and three lines to read, one of them bad."""
    (folder / "conduit.yaml").write_text("log: {level: info}\n")
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "orders.yaml").write_text(_pipeline())
    (folder / "in.jsonl").write_text('{"id":1}\nnot JSON\n{"id":2}\n')
    return folder


@pytest.fixture
def failed(project: Path) -> Path:
    """A project whose pipeline ran and failed."""
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.registering(
            lambda registry, _: registry.register_source("in", SourceUnit({}, "/"), {"files": [], "seen": 0})
        )
        store.registering(lambda registry, _: registry.register_consumer("out", "data"))
        store.status.failed(ERROR, None, "first")
    return project


@pytest.fixture
def lab(folder: Path, spark: SparkSession) -> Lab:
    """A project whose pipelines run in this process."""
    return Lab(folder, spark)


@pytest.fixture
def script(lab: Lab) -> Script:
    """What the lab's scripted destinations report."""
    return Script(lab)


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs that need Spark get the tests' session, and leave it open."""

    @contextmanager
    def shared(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    # some verbs look it up when they need it, and what runs pipelines has it by a name of its own; both modules are
    # there before either is patched: one imported in between would take the patch for its own, and keep it
    for module in (verb_session, running):
        monkeypatch.setattr(module, "spark_session", shared)


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    return partial(run_here, capsys)


class Shell:
    """Commands, each in a process of its own."""

    command = (sys.executable, "-m", "conduit_dagster.cli.main")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spawn(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Starts a command; unless its environment says otherwise it leaves no Spark server behind."""
        own = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = {"CI": "true", **(more.pop("env", None) or os.environ)}
        return subprocess.Popen([*self.command, *words], cwd=self.folder, env=env, **{**own, **more})

    @contextmanager
    def on_terminal(self, *words: str) -> Iterator[tuple[subprocess.Popen[str], Terminal]]:
        """Start a command on its own terminal; end it afterwards."""
        outer, inner = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        process = self.spawn(*words, stdin=inner, stdout=inner, stderr=inner, env=env, start_new_session=True)
        os.close(inner)
        try:
            yield process, Terminal(outer)
        finally:
            process.kill()
            process.wait()
            os.close(outer)

    def ended(self, process: subprocess.Popen[str], seconds: float = 150) -> Ran:
        """What a finished process left behind."""
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            process.kill()
        return Ran(process.returncode, out, err)

    def run(self, *words: str, **more: Any) -> Ran:
        """Run a command to its end."""
        return self.ended(self.spawn(*words, **more))

    def wait_until(self, process: subprocess.Popen[str], holds: Callable[[], bool], what: str) -> None:
        """Wait for an effect of a process; otherwise fail with all its output, and end it."""
        wait_until(holds, what, 150, over=lambda: process.poll() is not None, said=lambda: self._said(process))

    def _said(self, process: subprocess.Popen[str]) -> str:
        process.kill()
        ran = self.ended(process, 30)
        return f"{ran.out[-1500:]}\n{ran.err[-1500:]}"


@pytest.fixture
def shell(project: Path) -> Shell:
    """Commands in the project, each in a process of its own."""
    return Shell(project)


@pytest.fixture
def connected(folder: Path, connected: None) -> None:
    """Not before the folder: it removes the caller's settings."""


@pytest.fixture
def pipeline() -> Callable[..., str]:
    """Return the text of a pipeline file that runs."""
    return _pipeline
