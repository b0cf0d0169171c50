"""CASES.md, C3 and C4: a direct destination that is stopped or killed in the middle of a delivery."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.scripted import Script, scripted
from lab.stopping import run_until
from lab.support import DECODE, Lab, queue, source
from lab.waiting import wait_until, whole_lines
from pyspark.sql import SparkSession

from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.state.delivery_store import DeliveryStore
from conduit_dagster.state.overview import offset_rows

ONE_RUN = Path(__file__).parents[1] / "lab" / "one_run.py"


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(150)])
    return lab


@pytest.fixture
def script(lab: Lab) -> Script:
    """100 of its records are acked, and it waits before the next batch."""
    script = Script(lab)
    script.says(wait=100)
    return script


def build(lab: Lab, **delivery: Any) -> None:
    lab.pipeline(
        connectors=[source(), scripted()], processors=[DECODE], delivery=delivery, **{"dead-letter-queue": queue()}
    )


def offset(lab: Lab) -> int:
    if not (lab.root / ".conduit" / "state.db").exists():
        return -1
    with lab.store() as database:
        rows = {(row["consumer"], row["namespace"]): row["offset"] for row in offset_rows(database, "p")}
    return rows.get(("out", "*"), -1)


def stopped_at_100(lab: Lab) -> RunResult:
    return run_until(lab, lambda: offset(lab) == 99, "100 records are acked", StopFlag.request)


def test_c03_a_stop_waits_for_the_writers_and_then_the_rest_is_delivered_again(lab: Lab, script: Script) -> None:
    build(lab, **{"shutdown-timeout": "1s", "offset-flush-interval": "100ms"})
    result = stopped_at_100(lab)
    assert (result.status, result.reason, result.error) == ("stopped", "user", None)
    assert script.values() == list(range(100))
    (lab.root / "go").touch()
    script.says()
    assert lab.run().error is None
    assert set(script.values()) == set(range(100, 150))
    assert offset(lab) == 149


def test_acks_that_could_not_be_kept_are_kept_at_the_next_interval(
    lab: Lab, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was unreachable for a moment, and no further ack arrives while the destination waits."""
    keep, failed = DeliveryStore.progress, list[str]()

    def fails_once(store: DeliveryStore, *args: Any) -> None:
        if not failed:
            failed.append("once")
            raise TransientError("the state store does not answer", code="state.unreachable")
        keep(store, *args)

    monkeypatch.setattr(DeliveryStore, "progress", fails_once)
    build(lab, **{"shutdown-timeout": "1s", "offset-flush-interval": "100ms"})
    assert stopped_at_100(lab).error is None
    assert failed


def kill(lab: Lab, server: Any, when: Callable[[], bool], what: str) -> None:
    log = lab.root / "victim.log"
    with log.open("wb") as output:
        victim = server.start(ONE_RUN, lab.root, server.url, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(when, what, 120, over=lambda: victim.poll() is not None, said=lambda: log.read_text()[-3000:])
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait(90)


@pytest.mark.slow
def test_c04_acks_older_than_the_interval_survive_a_kill(lab: Lab, script: Script, connect_server: Any) -> None:
    build(lab, **{"offset-flush-interval": "200ms"})
    kill(lab, connect_server, lambda: offset(lab) == 99, "100 records are acked")
    assert script.values() == list(range(100))
    script.says()
    assert lab.run().error is None
    assert script.values() == list(range(100, 150))
    assert offset(lab) == 149


@pytest.mark.slow
def test_c04_younger_acks_are_sent_again_and_none_is_lost(lab: Lab, script: Script, connect_server: Any) -> None:
    build(lab, **{"offset-flush-interval": "1h"})
    # the file is there before its first line, which a task writes that outlives the killed process
    kill(lab, connect_server, lambda: bool(whole_lines(lab.root / "out.sent")), "records are sent")
    assert script.values() == list(range(100))
    script.says()
    assert lab.run().error is None
    assert script.values() == list(range(150))
