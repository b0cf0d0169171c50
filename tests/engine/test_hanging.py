"""A stop ends within the shutdown timeout, whatever hangs; the next run finishes what was decided."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.hanging_plugin import COUNTING, HANGING, HOLDING
from lab.stopping import run_until
from lab.stored_events import newest_events
from lab.support import DECODE, Lab, destination, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.engine import supervisor
from conduit_dagster.engine.bounded import GRACE, RECORDING
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state.overview import pipeline_rows

pytestmark = pytest.mark.slow

TIMEOUT = 1.0
LONGEST = TIMEOUT + GRACE + RECORDING + 20
"""More than the engine may take: a busy machine has other things to do. What hangs would hang for ten minutes."""


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "hanging.py").write_text(HANGING)
    return lab


def build(lab: Lab, *connectors: Any, **more: Any) -> None:
    delivery = {"strategy": "exactly-once", "shutdown-timeout": f"{TIMEOUT}s", **more.pop("delivery", {})}
    more.setdefault("dead-letter-queue", queue())
    lab.pipeline(connectors=list(connectors or (COUNTING, HOLDING)), delivery=delivery, **more)


def held(lab: Lab) -> list[int]:
    rows = [row for file in sorted(lab.root.glob("held.txt-*")) for row in lab.documents(file.name)]
    return [row["payload"]["after"]["i"] for row in rows]


def stopped(lab: Lab, how: Any) -> tuple[Any, float]:
    """The result of a run that hangs and is stopped like this, and how long that took."""
    asked: list[float] = []

    def stop(flag: StopFlag) -> None:
        asked.append(time.monotonic())
        how(flag)

    result = run_until(lab, lambda: (lab.root / "hangs").exists(), "it hangs", stop)
    return result, time.monotonic() - asked[0]


@pytest.mark.parametrize("how", [StopFlag.request, StopFlag.force])
@pytest.mark.parametrize("point", ["publish", "claim", "check", "latest", "ack", "close"])
def test_a_stop_ends_in_time_whatever_hangs(lab: Lab, point: str, how: Any) -> None:
    build(lab, COUNTING, {**HOLDING, "plugin": "refusing" if point == "claim" else "holding"})
    (lab.root / f"hang-{point}").touch()
    result, seconds = stopped(lab, how)
    assert seconds < LONGEST
    assert result.status == ("degraded" if how is StopFlag.force else "stopped")
    assert "hang in" in result.hung
    with lab.store() as database:
        row, (event,) = pipeline_rows(database)["p"], newest_events(database, "p", 1)
        assert (row["status"], row["owner"]) == (result.status, None)
        assert result.hung in str(event)
    (lab.root / f"hang-{point}").unlink()
    assert lab.run().error is None
    assert sorted(held(lab)) == [i for i in range(5) if i != 3 or point != "claim"]


def test_the_end_is_recorded_in_a_store_that_is_slow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, within = threading.Event(), supervisor.within

    def longer(work: Callable[[], None], seconds: float, name: str) -> bool:
        assert seconds == RECORDING
        recording.set()
        return within(work, 60, name)  # on a busy machine the rest takes longer than the recording may

    monkeypatch.setattr(supervisor, "within", longer)
    build(lab)
    (lab.root / "hang-publish").touch()
    with lab.store() as database:
        holder = database.connect()

        def stop(flag: StopFlag) -> None:
            holder.execute(sa.text("SELECT 1"))  # a transaction of the store's locks it
            flag.request()
            threading.Thread(target=release).start()

        def release() -> None:
            assert recording.wait(120)
            time.sleep(RECORDING / 2)  # the store stays locked for a part of the time
            holder.close()

        result = run_until(lab, lambda: (lab.root / "hangs").exists(), "it hangs", stop)
        assert "hang in" in result.hung
        row = pipeline_rows(database)["p"]
    assert (row["status"], row["owner"]) == ("stopped", None)
    (lab.root / "hang-publish").unlink()
    assert lab.run().error is None
    assert sorted(held(lab)) == list(range(5))


def test_one_of_two_that_publish_side_by_side_is_named(lab: Lab) -> None:
    build(lab, COUNTING, HOLDING, destination("more"))
    (lab.root / "hang-publish").touch()
    result, seconds = stopped(lab, StopFlag.request)
    assert seconds < LONGEST
    assert "hang in" in result.hung
    (lab.root / "hang-publish").unlink()
    assert lab.run().error is None
    assert held(lab) == [row["i"] for row in lab.documents("more.jsonl")] == list(range(5))


def test_a_thread_that_goes_on_after_it_was_left_decides_nothing(lab: Lab) -> None:
    """It acks no closed source, and its transactions are those of a deposed owner."""
    build(lab)
    (lab.root / "hang-publish").touch()
    stopped(lab, StopFlag.request)
    assert lab.lines("acks") == ["0"]
    build(lab, COUNTING, {**HOLDING, "plugin": "refusing"}, processors=[])
    (lab.root / "hang-publish").unlink()
    result = lab.run()
    # the step was prepared for the other destination and still belongs to it
    assert result.error is not None
    assert result.error.code == "delivery.target_changed"
    build(lab)
    assert lab.run().error is None
    assert held(lab) == list(range(5))
    assert lab.lines("acks").count("5") == 1


def test_a_thread_that_hangs_on_cancels_no_job_of_the_next_run(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(5)])
    build(lab, source(), HOLDING, processors=[DECODE], delivery={"batch-size": 1})
    (lab.root / "hang-publish").touch()
    stopped(lab, StopFlag.request)
    lab.write("in.jsonl", [{"i": i} for i in range(5, 20)], mode="a")
    # nothing of the next run hangs, while the abandoned thread still does
    (lab.root / "plugins" / "hanging.py").write_text(HANGING.replace("def hang(", "def hang(*_): pass\ndef unused("))
    try:
        assert lab.run().error is None
        assert sorted(held(lab)) == list(range(20))
    finally:
        (lab.root / "hang-publish").unlink()


def test_sources_are_closed_at_the_end_of_every_run(lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    assert lab.lines("acks") == ["0", "5", "closed"]
    assert lab.run().error is None
    assert lab.lines("acks")[3:] == ["5", "closed"]
