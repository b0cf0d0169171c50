"""Downtime of a failed pipeline: ``python -m benchmarks.restarts [--pipelines N...] [--spark MODE...]``.

All pipelines of a project fail at the same moment, with a delay of one second, and come back. Times are seconds after
the failure, from the state store and Dagster's run storage.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import sqlalchemy as sa

from benchmarks.daemon import Daemon
from benchmarks.processes import machine_cpu_seconds, resident_of
from conduit_dagster.config.project import Project
from conduit_dagster.engine.operate.subject import stop
from conduit_dagster.spark.server import stop_server
from conduit_dagster.state.database import open_database
from conduit_dagster.state.overview import pipeline_rows
from tests.lab.stored_events import newest_events

_PIPELINE = """
version: "2.2"
pipelines:
  - id: {id}
    status: running
    delivery: {{strategy: exactly-once}}
    recovery: {{min-delay: 1s}}
    connectors:
      - id: in
        type: source
        plugin: chaos
        settings: {{records: "1000000", rate: "20", fail-on: read, times: always, while: ./broken}}
      - {{id: out, type: destination, plugin: chaos, settings: {{path: ./{id}.jsonl}}}}
"""
_MODES = {"shared": "shared", "classic": "local[2]", "run": "shared"}
_SECONDS, _POLL = 600.0, 0.2


class Away(NamedTuple):
    """Times of one pipeline, in seconds after its failure."""

    created: float
    """Creation of its next run; 0 without Dagster."""
    restarted: float
    """Start of the run, after its delay."""
    record: float
    """Ack of the first record."""


class _Site:
    """A project, and events from its store."""

    def __init__(self, root: Path, pipelines: int, spark: str) -> None:
        self.root, self.names = root, [f"p{number}" for number in range(pipelines)]
        (root / "pipelines").mkdir()
        (root / "conduit.yaml").write_text(f"spark: {{url: '{spark}'}}\n")
        for name in self.names:
            (root / "pipelines" / f"{name}.yaml").write_text(_PIPELINE.format(id=name))

    @cached_property
    def store(self) -> sa.Engine:
        """Opened once, to keep the cost of observing low."""
        return open_database(Project.find(self.root, {}).state_url)

    def times(self, name: str) -> dict[str, float]:
        """Return the last time of each event, in seconds since the epoch."""
        return {row["event"]: row["at_ns"] / 1e9 for row in reversed(newest_events(self.store, name, 1000))}

    def lines(self, name: str) -> int:
        path = self.root / f"{name}.jsonl"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    def all(self, holds: Callable[[str], bool], what: str) -> None:
        end = time.monotonic() + _SECONDS
        while not all(holds(name) for name in self.names):
            if time.monotonic() > end:
                raise SystemExit(f"in vain: {what}")
            time.sleep(_POLL)


def measure(mode: str, pipelines: int) -> tuple[list[Away], float, float]:
    """Return each pipeline's times; the machine's CPU seconds from the failure to the last record; MB of one run."""
    root = Path(tempfile.mkdtemp(prefix="conduit-restarts-"))
    site = _Site(root, pipelines, _MODES[mode])
    with _command(root) if mode == "run" else _daemon(root) as created:
        site.all(lambda name: site.lines(name) >= 40, "records arrive")
        before = machine_cpu_seconds()
        (root / "broken").touch()
        site.all(lambda name: "failed" in site.times(name), "it failed")
        (root / "broken").unlink()
        site.all(lambda name: "recovered" in site.times(name), "it recovered")
        used = machine_cpu_seconds() - before
        memory = [resident_of(pipeline_rows(site.store)[name]["owner"]["pid"]) for name in site.names]
        away = [_away(site.times(name), created(name)) for name in site.names]
        for name in site.names:
            stop(site.store, name, "the benchmark", False, 10, 60)
    stop_server(root / ".conduit")
    shutil.rmtree(root, ignore_errors=True)
    return away, used, statistics.median(memory)


def _away(times: dict[str, float], created: float | None) -> Away:
    failed = times["failed"]
    begun = 0.0 if created is None else created - failed
    return Away(begun, times["restarted"] - failed, times["recovered"] - failed)


@contextmanager
def _daemon(root: Path) -> Generator[Callable[[str], float | None]]:
    daemon = Daemon(root)
    daemon.start()

    def created(name: str) -> float | None:
        with daemon.storage() as storage:
            (newest,) = storage.get_run_records(dg.RunsFilter(job_name=name), limit=1)
            return newest.create_timestamp.timestamp()

    try:
        yield created
    finally:
        daemon.stop()


@contextmanager
def _command(root: Path) -> Generator[Callable[[str], float | None]]:
    command = [sys.executable, "-m", "conduit_dagster.cli.main", "run"]
    with (root / "run.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=root, stdout=log, stderr=log)
    try:
        yield lambda name: None
    finally:
        process.terminate()
        process.wait(120)


def main() -> None:
    """Print a table. Nothing else should run on the machine."""
    parser = argparse.ArgumentParser(prog="benchmarks.restarts", description=__doc__)
    parser.add_argument("--pipelines", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--spark", nargs="+", choices=_MODES, default=list(_MODES))
    arguments = parser.parse_args()
    print("median, and the longest, of seconds after the failure; the delay is 1 s")
    print("| Spark | pipelines | run created | restarted | first record | CPU s each | MB each |")
    print("|---|---|---|---|---|---|---|")
    for mode in arguments.spark:
        for pipelines in arguments.pipelines:
            away, used, memory = measure(mode, pipelines)
            cells = [f"{statistics.median(column):.1f}, {max(column):.1f}" for column in zip(*away, strict=True)]
            print(f"| {mode} | {pipelines} | {' | '.join(cells)} | {used / pipelines:.1f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
