"""Dagster's real daemon with chaos pipelines: failures are restarted on time, once, with nothing lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from lab.server_process import free_port
from lab.stored_events import newest_events
from lab.waiting import wait_until, whole_lines

from benchmarks.daemon import Daemon
from conduit_dagster.config.project import Project
from conduit_dagster.engine.operate.subject import ask_start, stop
from conduit_dagster.spark.server import stop_server
from conduit_dagster.spark.server_files import ServerFiles
from conduit_dagster.state.database import open_database
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_state import NEVER, recovery_rows

PIPELINE = """
version: "2.2"
pipelines:
  - id: {id}
    status: running
    delivery: {{strategy: exactly-once, batch-size: 50}}
    recovery: {{min-delay: {delay}, max-delay: 1h}}
    connectors:
      - id: in
        type: source
        plugin: chaos
        settings: {{records: "{records}", {rate}{fault}}}
      - {{id: out, type: destination, plugin: chaos, settings: {{path: ./{id}.jsonl}}}}
"""
STEADY = ("thrice", "killed", "asleep")
SECONDS = 240

pytestmark = pytest.mark.slow


class Plant:
    """A project, Dagster's storage and a daemon for them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "pipelines").mkdir()
        self.daemon = Daemon(root, free_port)

    def write(self, name: str, delay: str = "1s", records: int = 200, fault: str = "", rate: int = 0) -> None:
        """A continuous pipeline."""
        text = f'rate: "{rate}", ' if rate else ""
        pipeline = PIPELINE.format(id=name, delay=delay, records=records, fault=fault, rate=text)
        (self.root / "pipelines" / f"{name}.yaml").write_text(pipeline)

    @cached_property
    def store(self) -> sa.Engine:
        return open_database(Project.find(self.root, {}).state_url)

    def row(self, name: str) -> dict[str, Any]:
        return pipeline_rows(self.store).get(name, {"status": None, "owner": None})

    def recovery(self, name: str) -> Any:
        return recovery_rows(self.store).get(name, NEVER)

    def events(self, name: str) -> list[dict[str, Any]]:
        return list(reversed(newest_events(self.store, name, 1000)))

    def names(self, name: str) -> list[str]:
        return [event["event"] for event in self.events(name)]

    def ids(self, name: str) -> list[int]:
        return [json.loads(line)["id"] for line in whole_lines(self._output(name))]

    def _output(self, name: str) -> Path:
        return self.root / f"{name}.jsonl"

    def wait(self, condition: Any, what: str) -> None:
        wait_until(condition, what, SECONDS, said=lambda: self.daemon.said)

    def wait_for(self, name: str, records: int) -> None:
        self.wait(lambda: len(whole_lines(self._output(name))) >= records, f"{records} records of {name}")

    def is_whole(self, name: str) -> bool:
        """Nothing lost, nothing duplicated, in order."""
        found = self.ids(name)
        return found == list(range(1, len(found) + 1))


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    plant = Plant(tmp_path_factory.mktemp("plant"))
    plant.write("thrice", records=100_000, rate=5, fault='fail-on: read, after: "30", times: "3"')
    plant.write("killed", records=100_000, rate=5)
    plant.write("ended", records=100_000, rate=5)
    plant.write("patient", delay="30m", fault="fail-on: read, times: always")
    plant.write("asleep", delay="12s", records=100_000, rate=5, fault="fail-on: read, times: once")
    plant.daemon.start()
    yield plant
    for name in (*STEADY, "ended", "patient"):
        if plant.row(name)["owner"] is not None:
            stop(plant.store, name, "test", False, 10, 90)
    plant.daemon.stop()
    stop_server(plant.root / ".conduit")


def test_a_restart_that_is_pending_outlives_the_daemon(plant: Plant) -> None:
    """B11: kill -9 of the daemon; the restart happens once, on time, or at once if that time has passed."""
    plant.wait(lambda: plant.recovery("asleep").restart_at_ns, "a restart is pending")
    plant.daemon.kill()
    plant.daemon.start()
    plant.wait_for("asleep", 50)
    told = plant.events("asleep")
    (due,) = [event["detail"]["restart_at_ns"] for event in told if event["event"] == "waiting"]
    (begun,) = [event["at_ns"] for event in told if event["event"] == "restarted"]
    assert begun >= due
    assert plant.is_whole("asleep")


def test_b01_b12_three_failures_three_restarts_no_record_lost(plant: Plant) -> None:
    plant.wait_for("thrice", 50)
    assert plant.is_whole("thrice")
    plant.wait(lambda: "recovered" in plant.names("thrice"), "thrice recovered")
    again = ["failed", "waiting", "restarted"]
    life = [name for name in plant.names("thrice") if name in {"started", *again, "recovered"}]
    assert life == ["started", *again, *again, *again, "recovered"]
    told = plant.events("thrice")
    assert [event["detail"]["delay"] for event in told if event["event"] == "waiting"] == [1.0, 2.0, 4.0]
    due = [event["detail"]["restart_at_ns"] for event in told if event["event"] == "waiting"]
    begun = [event["at_ns"] for event in told if event["event"] == "restarted"]
    assert all(at >= before for before, at in zip(due, begun, strict=True))
    with plant.daemon.storage() as storage:
        runs = storage.get_runs(dg.RunsFilter(job_name="thrice"))
    assert sorted(run.tags.get("conduit/attempt", "0") for run in runs) == ["0", "1", "2", "3"]


def test_a_worker_that_was_killed_is_found_and_replaced(plant: Plant) -> None:
    plant.wait_for("killed", 5)
    owner = plant.row("killed")["owner"]
    os.kill(owner["pid"], signal.SIGKILL)
    plant.wait(lambda: "restarted" in plant.names("killed"), "it was restarted")
    seen = len(plant.ids("killed"))
    plant.wait_for("killed", seen + 5)
    assert plant.is_whole("killed")


def test_b09_a_run_that_a_user_terminates_stays_ended(plant: Plant) -> None:
    plant.wait_for("ended", 5)
    owner = plant.row("ended")["owner"]
    with plant.daemon.storage() as storage:
        (run,) = storage.get_runs(dg.RunsFilter(job_name="ended", statuses=[dg.DagsterRunStatus.STARTED]))
        storage.report_run_canceling(run)
    # it also looks at its run in Dagster from time to time, and may have ended already
    with suppress(ProcessLookupError):
        os.kill(owner["pid"], signal.SIGINT)
    plant.wait(lambda: (plant.row("ended")["status"], plant.row("ended")["reason"]) == ("stopped", "user"), "stopped")
    assert plant.is_whole("ended")
    assert "waiting" not in plant.names("ended")


def test_b10_a_stop_during_backoff_wins_and_a_start_ends_it(plant: Plant) -> None:
    plant.wait(lambda: plant.recovery("patient").restart_at_ns, "a restart is pending")
    assert stop(plant.store, "patient", "test", False, 10, 90)
    assert (plant.row("patient")["status"], plant.row("patient")["reason"]) == ("stopped", "user")
    assert "restarted" not in plant.names("patient")
    assert ask_start(plant.store, "patient", "test", 10.0)
    plant.wait(lambda: plant.names("patient").count("started") == 2, "it was started again")


def test_the_shared_server_killed_under_three_pipelines_is_replaced(plant: Plant) -> None:
    files = ServerFiles(plant.root / ".conduit")
    for name in STEADY:
        plant.wait_for(name, 5)
    first = files.read()
    assert first is not None
    assert {session["pid"] for session in files.sessions()} >= {plant.row(name)["owner"]["pid"] for name in STEADY}
    before = {name: plant.names(name).count("restarted") for name in STEADY}
    os.kill(first.pid, signal.SIGKILL)
    for name in STEADY:
        plant.wait(lambda name=name: plant.names(name).count("restarted") > before[name], f"{name} was restarted")
    seen = {name: len(plant.ids(name)) for name in STEADY}
    for name in STEADY:
        plant.wait_for(name, seen[name] + 5)
        assert plant.is_whole(name)
        failed = [event["detail"]["code"] for event in plant.events(name) if event["event"] == "failed"]
        assert failed[-1].startswith("spark."), failed
    # one for all of them
    second = files.read()
    assert second is not None
    assert second.pid != first.pid
    assert second.is_alive()
