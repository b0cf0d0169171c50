"""Strategies, and steps in flight (CASES A3, D11, D17; DELIVERY.md, At-most-once and max-in-flight)."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.kills import hooked
from lab.operating import events
from lab.scripted import Script, scripted
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.sending import send_task
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state.overview import consumer_rows, source_rows
from conduit_dagster.state.tables import steps

ROWS = [{"i": i} for i in range(40)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


def build(lab: Lab, strategy: str, *outputs: Any, **delivery: Any) -> None:
    lab.pipeline(
        connectors=[source(), *(outputs or [destination()])],
        processors=[DECODE],
        delivery={"strategy": strategy, "batch-size": 10, **delivery},
        **{"dead-letter-queue": queue()},
    )


def values(lab: Lab, name: str = "out.jsonl") -> list[int]:
    return [row["i"] for row in map(_json, lab.lines(name)) if row]


def _json(line: str) -> Any:
    import json

    return json.loads(line) if line.strip("\0 ") else None


@pytest.mark.parametrize("layout", ["file", "folder"])
@pytest.mark.parametrize(
    "point", ["after-plan", "after-stage", "after-prepare", "mid-publish", "after-publish", "after-ack"]
)
def test_d17_at_most_once_delivers_nothing_twice(lab: Lab, crashes: Crashes, point: str, layout: str) -> None:
    """Killed after the offset moved and before the write, that step is not delivered again; half of it may exist."""
    output = destination("out", "./out.jsonl" if layout == "file" else "./out/")
    build(lab, "at-most-once", output)
    crashes(lab, f"{point}:2")
    assert lab.run().error is None
    if layout == "file":
        found = values(lab)
    else:
        found = [_json(line)["i"] for part in sorted((lab.root / "out").rglob("part-*")) for line in part.open()]
    lost = {("after-prepare", "file"): 10, ("after-prepare", "folder"): 10, ("mid-publish", "file"): 5,
            ("mid-publish", "folder"): 10}.get((point, layout), 0)  # fmt: skip
    assert found == [*range(20 - lost), *range(20, 40)]
    assert lab.run().progress.read == 0
    # who was killed before the delivery's end was noted can't know what arrived
    cut_off = [] if point in ("after-plan", "after-stage", "after-ack") else [("out", 2, 10)]
    assert [(row["consumer"], row["step"], row["records"]) for row in events(lab, "cut_off")] == cut_off


def test_at_most_once_drops_the_rest_of_a_delivery_that_fails(lab: Lab) -> None:
    """Counted and named; the next run continues after it."""
    script = Script(lab)
    build(lab, "at-most-once", scripted())
    script.says(outage=[13])
    result = lab.run()
    assert result.error is not None
    assert not result.error.fatal
    assert "10 records of step 2 are dropped (at-most-once)" in result.error.message
    script.sent()
    script.says()
    assert lab.run().error is None
    assert script.sent() == [list(range(20, 30)), list(range(30, 40))]


def test_an_at_most_once_step_counts_although_its_delivery_fails(lab: Lab) -> None:
    """It is done, and no later run counts it: so the run's own counts are those of the store."""
    script = Script(lab)
    refusing = processor("no", "error", "after.i == 12", message="twelve")
    lab.pipeline(
        connectors=[source(), scripted(), destination("good")],
        processors=[DECODE, refusing],
        delivery={"strategy": "at-most-once", "batch-size": 10},
        **{"dead-letter-queue": queue()},
    )
    script.says(outage=[13])
    result = lab.run()
    assert result.error is not None and "9 records of step 2 are dropped" in result.error.message
    progress = result.progress
    assert (progress.read, progress.nacked, progress.dead_lettered) == (20, 1, 1)
    assert progress.delivered == {"out": 10, "good": 19}
    with lab.store() as database:
        (stored,) = source_rows(database, "p")
        delivered = {row["id"]: row["delivered"] for row in consumer_rows(database, "p")}
    assert (stored["records"], stored["nacked"], stored["acked"]) == (20, 1, 19)
    assert delivered == {"dead_letters": 1, **progress.delivered}


def test_what_is_acked_behind_a_record_without_an_ack_is_not_dropped(lab: Lab) -> None:
    """A refused record behind one without an ack was counted twice: 12 of 10 were dropped."""
    script = Script(lab)
    build(lab, "at-most-once", scripted())
    script.says(acks=[[3, "only"], [5, "only"]], refuse=[6, 8])
    result = lab.run()
    assert result.error is not None and "8 records of step 1 are dropped" in result.error.message
    assert result.progress.delivered == {"out": 2}
    [event] = events(lab, "dropped")
    assert event["records"] == 8


def test_a_refused_record_of_a_direct_destination_names_it_when_the_rest_is_dropped(lab: Lab) -> None:
    script = Script(lab)
    build(lab, "at-most-once", scripted())
    script.says(refuse=[6])
    error = lab.run().error
    assert error is not None and "dropped" in error.message
    assert error.node == "p:out"


def test_at_most_once_sends_nothing_again_when_spark_repeats_a_task(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a cluster, where an executor is lost that has sent and not reported; at-least-once sends it again."""
    each = Jobs.each

    def repeated(jobs: Jobs, count: int, task: Any, queries: Any = None) -> list[bytes]:
        if getattr(task, "func", None) is send_task:
            each(jobs, count, task, queries)
        return each(jobs, count, task, queries)

    monkeypatch.setattr(Jobs, "each", repeated)
    script = Script(lab)
    build(lab, "at-most-once", scripted())
    result = lab.run()
    assert result.error is not None
    assert "10 records of step 1 are dropped (at-most-once)" in result.error.message
    assert script.sent() == [list(range(10))]
    build(lab, "at-least-once", scripted())
    assert lab.run().error is None
    assert Counter(script.values()) == Counter([*range(10, 40)] * 2)


@pytest.mark.parametrize("depth", [2, 3])
def test_steps_in_flight_arrive_in_order(lab: Lab, depth: int) -> None:
    build(lab, "exactly-once", **{"max-in-flight": depth, "batch-size": 3})
    result = lab.run()
    assert result.error is None
    assert values(lab) == list(range(40))
    assert result.progress.steps == 14


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a03_unacked_steps_never_exceed_the_bound(lab: Lab, depth: int) -> None:
    """The publishing of the first step is held back: this many are staged, and no more are planned, then or later."""
    passed: Counter[str] = Counter()
    unacked: list[int] = []
    full, more = threading.Event(), threading.Event()

    def hook(point: str, pipeline: str) -> None:
        passed[point] += 1
        if point == "after-plan":
            unacked.append(passed["after-plan"] - passed["after-ack"])
            if unacked[-1] > depth:
                more.set()
        if point == "after-stage" and passed["after-stage"] == depth:
            full.set()
        if point == "before-publish" and passed["before-publish"] == 1:
            assert full.wait(120)
            # time in which another one would be planned if that were allowed
            assert not more.wait(0.5)

    build(lab, "at-least-once", **{"max-in-flight": depth})
    with hooked(hook):
        result = lab.run()
    assert result.error is None
    assert values(lab) == list(range(40))
    assert max(unacked) == depth


def test_a_cut_voids_the_steps_behind_it(lab: Lab) -> None:
    """Step 2 is cut before record 13 while step 3 is already staged: nothing after 12 is delivered."""
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, processor("no", "error", "after.i == 13", message="thirteen")],
        delivery={"batch-size": 10, "max-in-flight": 3},
    )
    result = lab.run()
    assert result.error is not None
    assert "thirteen" in result.error.message
    assert values(lab) == list(range(13))
    build(lab, "at-least-once")
    assert lab.run().error is None
    assert values(lab) == list(range(40))


def test_a_failed_publish_voids_the_steps_behind_it(lab: Lab) -> None:
    script = Script(lab)
    build(lab, "at-least-once", scripted(), **{"max-in-flight": 3})
    script.says(outage=[13])
    assert lab.run().error is not None
    script.says()
    assert lab.run().error is None
    sent = script.values()
    assert sent == [*range(20), *range(10, 40)]


@pytest.mark.parametrize(
    "point", ["after-plan:3", "after-stage:3", "before-publish:2", "after-delivered:2", "after-done:2"]
)
def test_a_crash_with_steps_in_flight(lab: Lab, crashes: Crashes, point: str) -> None:
    build(lab, "exactly-once", **{"max-in-flight": 3})
    crashes(lab, point)
    assert lab.run().error is None
    assert values(lab) == list(range(40))


def stopped_after_the_first(lab: Lab) -> RunResult:
    """A run that is asked to stop when its first step is done and its second one staged."""
    stop, staged = StopFlag(), threading.Event()
    passed: Counter[str] = Counter()

    def hook(point: str, pipeline: str) -> None:
        passed[point] += 1
        if point == "after-stage" and passed[point] == 2:
            staged.set()
        if point == "before-publish" and passed[point] == 1:
            assert staged.wait(120)

    with hooked(hook):
        return lab.run(stop=stop, observe=lambda step, progress: stop.request())


def test_a09_a_graceful_stop_finishes_what_is_in_flight(lab: Lab) -> None:
    """A staged step is finished as well while the shutdown timeout lasts; nothing is delivered again."""
    build(lab, "exactly-once", **{"max-in-flight": 2})
    result = stopped_after_the_first(lab)
    assert (result.status, result.reason, result.error) == ("stopped", "user", None)
    assert values(lab) == list(range(20))
    assert lab.run().error is None
    assert values(lab) == list(range(40))


def test_a_stop_without_time_voids_what_is_only_staged(lab: Lab) -> None:
    build(lab, "exactly-once", **{"max-in-flight": 2, "shutdown-timeout": "0s"})
    result = stopped_after_the_first(lab)
    assert (result.status, result.reason, result.error) == ("stopped", "user", None)
    assert values(lab) == list(range(10))
    with lab.store() as database, database.connect() as connection:
        found = connection.execute(sa.select(steps.c.state).order_by(steps.c.step)).scalars().all()
    assert found == ["done", "void"]
    assert lab.run().error is None
    assert values(lab) == list(range(40))
