"""A pipeline file that changes while a step is open: finished as prepared, or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from lab.scripted import Script, scripted
from lab.support import DECODE, Crashes, Lab, destination, queue, source
from pyspark.sql import SparkSession

ROWS = [{"i": i} for i in range(6)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    lab.write("in2.jsonl", [{"i": i} for i in range(10, 16)])
    return lab


def second() -> dict[str, Any]:
    return {**source("./in2.jsonl"), "id": "in2"}


def build(lab: Lab, *connectors: Any, strategy: str = "at-least-once", log: str = "auto", **more: Any) -> None:
    more.setdefault("dead-letter-queue", queue())
    delivery = {"strategy": strategy, "log": log}
    lab.pipeline(
        connectors=list(connectors or (source(), destination())), processors=[DECODE], delivery=delivery, **more
    )


def values(lab: Lab) -> list[int]:
    return [row["i"] for row in lab.documents("out.jsonl")]


@pytest.mark.parametrize("now", ["at-least-once", "at-most-once", "exactly-once"])
@pytest.mark.parametrize("was", ["at-least-once", "at-most-once", "exactly-once"])
@pytest.mark.parametrize("point", ["after-plan", "after-publish"])
def test_another_strategy(lab: Lab, crashes: Crashes, was: str, now: str, point: str) -> None:
    """A prepared step ends as prepared; later ones have the new strategy."""
    build(lab, strategy=was)
    crashes(lab, point)
    build(lab, strategy=now)
    lab.write("in.jsonl", [{"i": 6}], mode="a")
    assert lab.run().error is None
    assert values(lab) == list(range(7))
    assert lab.run().progress.read == 0


@pytest.mark.parametrize(("was", "now"), [("positions", "records"), ("records", "positions")])
def test_a_prepared_step_is_finished_before_another_log_begins(lab: Lab, crashes: Crashes, was: str, now: str) -> None:
    build(lab, log=was)
    crashes(lab, "after-prepare")
    build(lab, log=now)
    lab.write("in.jsonl", [{"i": 6}], mode="a")
    assert lab.run().error is None
    assert values(lab) == list(range(7))
    assert lab.run().progress.read == 0


def test_another_log_drops_a_step_that_is_only_planned(lab: Lab, crashes: Crashes) -> None:
    build(lab, log="positions")
    crashes(lab, "after-stage")
    build(lab, log="records")
    assert lab.run().error is None
    assert values(lab) == list(range(6))


def test_a_removed_source_is_not_needed_to_publish_what_is_prepared(lab: Lab, crashes: Crashes) -> None:
    build(lab, source(), second(), destination())
    crashes(lab, "after-prepare")
    build(lab)
    assert lab.run().error is None
    assert sorted(values(lab)) == [*range(6), *range(10, 16)]


def test_a_removed_source_is_named_where_a_prepared_step_needs_it(lab: Lab, crashes: Crashes) -> None:
    build(lab, source(), second(), destination())
    crashes(lab, "after-prepare")
    shutil.rmtree(lab.root / ".conduit" / "staging")
    build(lab)
    result = lab.run()
    assert result.error is not None
    assert (result.error.code, result.error.fatal) == ("delivery.source_changed", True)
    build(lab, source(), second(), destination())
    assert lab.run().error is None
    assert sorted(values(lab)) == [*range(6), *range(10, 16)]


def test_a_destination_that_is_added_while_a_step_is_planned(lab: Lab, crashes: Crashes) -> None:
    """It starts at the current boundary: a step that is not prepared yet comes after it."""
    build(lab)
    crashes(lab, "after-plan")
    build(lab, source(), destination(), destination("more"))
    assert lab.run().error is None
    assert values(lab) == [row["i"] for row in lab.documents("more.jsonl")] == list(range(6))


@pytest.mark.parametrize("refuse", [True, False])
def test_letters_of_refused_records_reach_a_direct_queue(lab: Lab, refuse: bool) -> None:
    """If the queue refuses one, the run stops and nothing beyond it is acked."""
    script = Script(lab)
    letters = {**scripted("dead"), "window-size": 0}
    del letters["id"], letters["type"]
    build(lab, source(), scripted(), **{"dead-letter-queue": letters})
    script.says(refuse=[2])
    script.says("dead", refuse=[2] if refuse else [])
    result = lab.run()
    if refuse:
        assert result.error is not None
        assert not result.error.fatal
        script.says("dead")
        assert lab.run().error is None
    else:
        assert result.error is None
    assert script.sent("dead")[-1] == [2]
    assert lab.run().progress.read == 0


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("point", ["after-plan", "after-prepare", "after-publish"])
def test_a_project_that_is_moved_with_a_step_open(lab: Lab, crashes: Crashes, point: str, log: str) -> None:
    """Within its file system: paths in the project are relative to it, and staging is found or made again."""
    build(lab, strategy="exactly-once", log=log)
    crashes(lab, point)
    moved = lab.root.with_name(f"{lab.root.name}-moved")
    lab.root.rename(moved)
    lab.root = moved
    lab.write("in.jsonl", [{"i": 6}], mode="a")
    assert lab.run().error is None
    assert values(lab) == list(range(7))
    assert lab.run().progress.read == 0


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once", "at-most-once"])
def test_adopting_foreign_bytes_does_not_go_with_exactly_once(lab: Lab, strategy: str) -> None:
    """After them a half-written delivery is written again, completely (audit P12)."""
    adopting = destination()
    adopting["settings"]["if-changed"] = "adopt"
    build(lab, source(), adopting, strategy=strategy)
    found = [(finding.code, finding.path) for finding in lab.catalogue().findings]
    refused = [("delivery.strategy_unsupported", "/pipelines/0/connectors/1/plugin")]
    assert found == (refused if strategy == "exactly-once" else [])


def test_the_fix_for_a_strategy_is_one_that_the_destination_keeps(lab: Lab) -> None:
    text = "from conduit_dagster.sdk import DriverDestination\n\n\nclass Once(DriverDestination):\n    name = 'once'\n"
    text += "    strategies = frozenset({'exactly-once'})\n    def deliver(self, records, delivery):\n        pass\n"
    lab.write("plugins/once.py", [text])
    lab.pipeline(connectors=[source(), {"id": "out", "type": "destination", "plugin": "once", "settings": {}}])
    [finding] = lab.catalogue().findings
    assert finding.fix == "set delivery.strategy: exactly-once, or use a destination that supports it"
