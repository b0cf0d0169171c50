"""``deduplicate`` in a pipeline: each key once, wherever a run is killed, over restarts, replays and rewinds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lab.choice import some
from lab.kills import crashing, hooked
from lab.support import DECODE, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.cli.main import main
from conduit_dagster.state.database import reading
from conduit_dagster.state.pipeline_state import load

pytestmark = pytest.mark.slow

KEYS = [3, 1, 3, 2, 1, 1, 4, 3, 2, 5, 1, 6, 2, 7, 5]
"""The keys of fifteen records, which have their places as their numbers."""
FIRST = [0, 1, 3, 6, 9, 11, 13]
"""The places of the first one of each key."""


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i, "k": k} for i, k in enumerate(KEYS)])
    return lab


def build(lab: Lab, *behind: Any, name: str = "p", records: int = 100, **more: Any) -> None:
    """Three records per step; ``behind``: processors after it."""
    once = processor("once", "deduplicate", **{"key": "after.k", "window.records": str(records)})
    usual: dict[str, Any] = {
        "connectors": [source(), destination(path=f"./{name}.jsonl")],
        "processors": [DECODE, once, *behind],
        "delivery": {"batch-size": 3, "strategy": "exactly-once"},
        "dead-letter-queue": queue(path=f"./{name}-dead.jsonl"),
    }
    lab.pipeline(id=name, **{**usual, **more})


def places(lab: Lab, name: str = "p") -> list[int]:
    """The delivered records."""
    return [row["i"] for row in lab.documents(f"{name}.jsonl")]


def windowed(first: int, records: int) -> list[int]:
    """What passes of the records from a place on, if keys are forgotten after so many."""
    last, wanted = dict[int, int](), list[int]()
    for place, key in enumerate(KEYS[first:], first):
        if key not in last or place - last[key] > records:
            last[key] = place
            wanted.append(place)
    return wanted


def files(lab: Lab) -> list[str]:
    """What is remembered on disk."""
    return sorted(path.name for path in lab.root.rglob("~memory/*"))


@pytest.mark.parametrize("log", ["positions", "records"])
def test_each_key_once_over_steps_and_runs(lab: Lab, log: str) -> None:
    build(lab, delivery={"batch-size": 3, "log": log})
    assert lab.run().error is None
    assert places(lab) == FIRST
    lab.write("in.jsonl", [{"i": 15, "k": 4}, {"i": 16, "k": 9}], mode="a")
    assert lab.run().error is None
    assert places(lab) == [*FIRST, 16]


@pytest.mark.parametrize("stands", some(["destination"], ["pipeline"]))
def test_killed_at_each_line(lab: Lab, stands: str) -> None:
    """A repeated step starts with the same memory, and a step that did not count left nothing in it."""
    passed = Counter[str]()

    def make(name: str) -> None:
        build(lab, name=name)
        if stands == "destination":
            once = processor("once", "deduplicate", **{"key": "after.k", "window.records": "100"})
            out = destination(path=f"./{name}.jsonl") | {"processors": [once]}
            build(lab, name=name, connectors=[source(), out], processors=[DECODE])

    make("whole")
    with hooked(lambda point, pipeline: passed.update([point])):
        assert lab.run("whole").error is None
    assert places(lab, "whole") == FIRST
    del passed["after-lease"]  # a crash in this process keeps the lease
    for number, point in enumerate(passed):
        name = f"p{number}"
        make(name)
        with crashing(point, min(passed[point], 2)):
            lab.run(name)
        assert lab.run(name).error is None
        assert places(lab, name) == FIRST, point


def test_staging_that_is_lost_is_staged_the_same_again(lab: Lab) -> None:
    build(lab)
    with crashing("after-prepare", 3):
        lab.run()
    for path in [path for path in lab.root.rglob("*") if path.is_dir() and path.name == "out"]:
        for part in path.iterdir():
            part.unlink()
    assert lab.run().error is None
    assert places(lab) == FIRST


def test_a_step_that_is_cut_leaves_nothing_behind_the_cut(lab: Lab) -> None:
    """The nack of a step's last record stops the run before it: its key is not known yet."""
    build(
        lab,
        processor("refuse", "error", "after.i == 11", message="no"),
        **{"dead-letter-queue": queue(1, 0)},
        delivery={"batch-size": 15},
    )
    failed = lab.run().error
    assert failed is not None and "no" in failed.message
    assert places(lab) == [place for place in FIRST if place < 11]
    build(lab)
    assert lab.run().error is None
    assert places(lab) == FIRST


def test_a_window_of_records(lab: Lab) -> None:
    """After four records a key is forgotten."""
    build(lab, records=4)
    assert lab.run().error is None
    assert places(lab) == windowed(0, 4) and len(places(lab)) > len(FIRST)


def test_a_dead_letter_is_no_duplicate_of_itself(lab: Lab) -> None:
    """It passed the processor, and its duplicates were dropped: a replay must deliver it."""
    build(lab, processor("refuse", "error", "after.k == 1", message="no"))
    assert lab.run().error is None
    assert places(lab) == [place for place in FIRST if KEYS[place] != 1]
    build(lab)
    assert lab.replay()["replayed"] == 1
    assert sorted(places(lab)) == FIRST
    lab.write("in.jsonl", [{"i": 15, "k": 1}], mode="a")
    assert lab.run().error is None
    assert sorted(places(lab)) == FIRST


def test_a_dead_letter_whose_key_came_again_is_delivered_all_the_same(lab: Lab) -> None:
    """It had passed the processor: another one after the window is no reason to drop it."""
    lab.write("in.jsonl", [{"i": 15, "k": KEYS[0]}], mode="a")
    build(lab, processor("refuse", "error", "after.i == 0", message="no"), records=4)
    assert lab.run().error is None
    went = places(lab)
    assert 0 not in went and 15 in went
    build(lab, records=4)
    assert lab.replay()["delivered"] == {"out": 1}
    assert places(lab) == [*went, 0]


def test_a_rewind_forgets_what_a_replay_has_left(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter nacked before the processor passes it when it is replayed, and is remembered."""
    once = processor("once", "deduplicate", **{"key": "after.k", "window.records": "4"})
    delivery = {"batch-size": 3, "log": "records"}
    for refused in (0, 99):
        refuse = processor("refuse", "error", f"after.i == {refused}", message="no")
        build(lab, processors=[DECODE, refuse, once], delivery=delivery)
        if refused == 0:
            assert lab.run().error is None
    went = places(lab)
    assert went == windowed(1, 4)
    assert lab.replay()["delivered"] == {"out": 1}
    monkeypatch.chdir(lab.root)
    assert main(("positions", "rewind", "p", "--to-offset", "2")) == 0
    assert lab.run().error is None
    assert places(lab) == [*went, 0, *windowed(2, 4)]


def test_a_rewound_source_is_looked_at_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    build(lab)
    assert lab.run().error is None
    monkeypatch.chdir(lab.root)
    assert main(("positions", "rewind", "p", "--to-start")) == 0
    assert lab.run().error is None
    assert places(lab) == FIRST * 2


def test_another_key_knows_nothing(lab: Lab) -> None:
    """Nothing remembered under ``after.k`` is a value of ``after.i``."""
    build(lab)
    assert lab.run().error is None
    lab.write("in.jsonl", [{"i": i, "k": 0} for i in (1, 2, 20)], mode="a")
    build(lab, processors=[DECODE, processor("once", "deduplicate", **{"key": "after.i", "window.records": "100"})])
    assert lab.run().error is None
    assert places(lab) == [*FIRST, 1, 2, 20]


def test_many_files_become_one_and_what_is_over_goes(lab: Lab) -> None:
    """Forty steps; once there are sixteen files the next one replaces them."""
    keys = [i % 30 for i in range(40)]
    lab.write("in.jsonl", [{"i": i, "k": key} for i, key in enumerate(keys)])
    for name, records in (("all", 100), ("few", 5)):
        build(lab, name=name, records=records, delivery={"batch-size": 1})
        assert lab.run(name).error is None
    assert places(lab, "all") == list(range(30)) and places(lab, "few") == list(range(40))
    held = {path.parent.parent.name: len(list(path.parent.iterdir())) for path in lab.root.rglob("~memory/*")}
    assert held["all"] <= 17 and held["few"] <= 7


def test_what_never_counted_is_removed(lab: Lab) -> None:
    build(lab)
    with crashing("before-prepare", 2):
        lab.run()
    before = set(files(lab))
    assert lab.run().error is None
    lab.write("in.jsonl", [{"i": 15, "k": 1}], mode="a")
    assert lab.run().error is None
    with lab.store() as store, reading(store) as connection:
        kept = {part.name for one in load(connection, "p").memory.values() for part in one.parts}
    assert set(files(lab)) == kept and before - kept
    assert places(lab) == FIRST


def test_a_damaged_file_is_named(lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    [first, *_] = lab.root.rglob("~memory/*")
    whole = first.read_bytes()
    first.write_bytes(whole[:-9] + b"x" + whole[-8:])
    lab.write("in.jsonl", [{"i": 15, "k": 4}, {"i": 16, "k": 9}], mode="a")
    # a worker that has it in memory does not read it again: to the worker this is another program
    build(lab, processor("more", "filter", "after.i == 99"))
    failed = lab.run().error
    assert failed is not None and failed.fatal
    assert (failed.code, failed.node) == ("memory.damaged", "p:once") and first.name in (failed.place or "")
    first.write_bytes(whole)
    assert lab.run().error is None
    assert places(lab) == [*FIRST, 16]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"delivery": {"max-in-flight": 2}}, "processor.one_in_flight"),
        ({"connectors": [source(), destination(**{"start-from": "log"})]}, "destination.remembering"),
        ({"connectors": [source() | {"processors": [DECODE]}, destination()]}, None),
    ],
)
def test_where_it_can_not_stand(lab: Lab, more: dict[str, Any], code: str | None) -> None:
    build(lab, **more)
    found = {finding.code for finding in lab.catalogue().findings if finding.severity == "error"}
    assert found == ({code} if code else set())


def test_not_among_the_processors_of_a_source(lab: Lab) -> None:
    once = processor("once", "deduplicate", **{"key": "after.k", "window.records": "9"})
    build(lab, connectors=[source() | {"processors": [DECODE, once]}, destination()])
    assert "processor.misplaced" in {finding.code for finding in lab.catalogue().findings}


def test_without_the_processor_nothing_stays_on_disk(lab: Lab) -> None:
    """Until a step has been done without it, it may return unchanged."""
    build(lab)
    assert lab.run().error is None
    kept = files(lab)
    assert kept
    build(lab, processors=[DECODE])
    assert lab.run().error is None
    assert files(lab) == kept
    lab.write("in.jsonl", [{"i": 15, "k": 1}], mode="a")
    for _ in range(2):
        assert lab.run().error is None
    assert files(lab) == []
    assert places(lab) == [*FIRST, 15]
