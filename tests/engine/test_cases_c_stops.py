"""CASES.md, C3 and C4: a direct destination that is stopped or killed in the middle of a delivery."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from scripted import Script, scripted
from support import DECODE, Lab, queue, source

from conduit_dagster.config.project import Project
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state.database import open_database
from conduit_dagster.state.overview import offset_rows

TESTS = Path(__file__).parents[1]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(150)])
    return lab


@pytest.fixture
def script(lab: Lab) -> Script:
    """It has 100 records acked, and waits before the next batch."""
    script = Script(lab)
    script.says(wait=100)
    return script


def build(lab: Lab, **delivery: Any) -> None:
    lab.pipeline(
        connectors=[source(), scripted()], processors=[DECODE], delivery=delivery, **{"dead-letter-queue": queue()}
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


def offset(lab: Lab) -> int:
    if not (lab.root / ".conduit" / "state.db").exists():
        return -1
    database = open_database(Project.find(lab.root, {}).state_url)
    try:
        rows = {(row["consumer"], row["namespace"]): row["offset"] for row in offset_rows(database, "p")}
    finally:
        database.dispose()
    return rows.get(("out", "*"), -1)


def sent_values(script: Script) -> list[int]:
    return [value for batch in script.sent() for value in batch]


def test_c06_c3_a_stop_waits_for_the_writers_and_then_the_rest_is_delivered_again(lab: Lab, script: Script) -> None:
    stop = StopFlag()
    build(lab, **{"shutdown-timeout": "1s", "offset-flush-interval": "100ms"})
    asked = threading.Thread(target=lambda: (wait_until(lambda: offset(lab) == 99), stop.request()))
    asked.start()
    result = lab.run(stop=stop)
    asked.join()
    assert (result.status, result.reason, result.error) == ("stopped", "user", None)
    assert sent_values(script) == list(range(100))
    (lab.root / "go").touch()
    script.says()
    assert lab.run().error is None
    assert set(sent_values(script)) == set(range(100, 150))
    assert offset(lab) == 149


def kill(lab: Lab, server: Any, when: Callable[[], bool]) -> None:
    env = {**server.env, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, str(TESTS / "one_run.py"), str(lab.root), server.url]
    victim = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: victim.poll() is not None or when())
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait(30)


@pytest.mark.slow
def test_c06_c4_acks_older_than_the_interval_survive_a_kill(lab: Lab, script: Script, connect_server: Any) -> None:
    build(lab, **{"offset-flush-interval": "200ms"})
    kill(lab, connect_server, lambda: offset(lab) == 99)
    assert sent_values(script) == list(range(100))
    script.says()
    assert lab.run().error is None
    assert sent_values(script) == list(range(100, 150))
    assert offset(lab) == 149
    (lab.root / "go").touch()  # the job that goes on waiting in the server may end


@pytest.mark.slow
def test_c06_c4_younger_acks_are_sent_again_and_none_is_lost(lab: Lab, script: Script, connect_server: Any) -> None:
    build(lab, **{"offset-flush-interval": "1h"})
    kill(lab, connect_server, (lab.root / "out.sent").exists)
    assert sent_values(script) == list(range(100))
    script.says()
    assert lab.run().error is None
    assert sent_values(script) == list(range(150))
    (lab.root / "go").touch()
