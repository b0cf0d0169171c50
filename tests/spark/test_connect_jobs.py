"""Jobs left by a killed owner at a shared server end before its successor continues."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ConnectServer
from lab.waiting import wait_until

from conduit_dagster.spark.connect import owner_tag
from conduit_dagster.spark.executors import TaskReports

HERE = Path(__file__).parent


def last(sent: Path) -> list[str]:
    """Process and time of the last complete line."""
    return [line for line in sent.read_text().splitlines(keepends=True) if line.endswith("\n")][-1].split()


def test_a_tag_tells_pipelines_and_owners_apart() -> None:
    tags = {owner_tag(name, epoch) for name in ("a", "a,b", "a:b") for epoch in (1, 2)}
    assert len(tags) == 6
    assert not any("," in tag for tag in tags)


@pytest.mark.slow
def test_what_a_killed_owner_sends_is_ended(connect_server: ConnectServer, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    owner = connect_server.start(HERE / "owned_job.py", connect_server.url, sent, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    known = json.loads(owner.stdout.readline())
    wait_until(lambda: sent.exists() and len(sent.read_text().splitlines()) > 3, "the owner's job sends")
    owner.kill()
    owner.wait(60)
    killed = time.time()
    wait_until(lambda: float(last(sent)[1]) > killed + 0.5, "it goes on without its owner")
    words = (connect_server.url, json.dumps(known))
    successor = connect_server.start(HERE / "successor.py", *words, stdout=subprocess.PIPE, text=True)
    said, _ = successor.communicate(timeout=120)
    ended, again, at = said.split()
    assert (ended, again) == ("1", "0")
    wait_until(lambda: not Path("/proc", last(sent)[0]).exists(), "the worker that sent is gone")
    assert float(last(sent)[1]) < float(at), "nothing is sent once the successor goes on"


class _Stage(NamedTuple):
    num_tasks: int
    num_completed_tasks: int


def test_a_job_waits_while_tasks_are_left_and_none_is_at_work() -> None:
    reports, own = TaskReports(), threading.get_ident()
    for stages, inflight, done, waits in (
        ([_Stage(2, 0)], 0, False, True),
        ([_Stage(2, 0)], 1, False, False),
        ([_Stage(2, 1)], 0, False, True),
        ([_Stage(2, 2)], 0, False, False),
        ([_Stage(2, 1)], 0, False, True),
        ([_Stage(2, 1)], 0, True, False),
        (None, 0, False, False),
    ):
        reports.report(stages, inflight, "an id", done)
        assert (reports.idle_seconds(own) > 0) == waits
    reports.report([_Stage(1, 0)], 0, "an id", False)
    assert reports.idle_seconds(own + 1) == 0, "of another thread"


@pytest.mark.slow
def test_a_job_that_no_executor_of_a_server_runs_says_so(connect_server: ConnectServer, tmp_path: Path) -> None:
    """Before a cluster without workers it waited for ever, without a word."""
    words = (connect_server.url, tmp_path)
    client = connect_server.start(HERE / "waiting_job.py", *words, stdout=subprocess.PIPE, text=True)
    said, _ = client.communicate(timeout=150)
    event, rows = json.loads(said)
    assert event == "the job waits: the Spark server runs none of its tasks"
    assert rows == [8, 1]
