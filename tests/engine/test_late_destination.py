"""A destination that is added later and starts from the log (DELIVERY.md, Destinations)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from lab.scripted import Script, scripted
from lab.stored_events import newest_events
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.state.overview import offset_rows
from conduit_dagster.state.pipeline_state import load

pytestmark = pytest.mark.slow

OLD = [{"i": i} for i in range(40)]
NEW = [{"i": i} for i in range(40, 50)]
ALL = [*OLD, *NEW]
LATE = destination("late", **{"start-from": "log"})


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    """A pipeline has run with one destination; since then its source has new records."""
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", OLD)
    build(lab)
    assert lab.run().error is None
    lab.write("in.jsonl", NEW, mode="a")
    return lab


def build(lab: Lab, *late: Any, processors: Any = (), connectors: Any = (), **more: Any) -> None:
    delivery = {"log": "records", "batch-size": 15, "strategy": "exactly-once", **more.pop("delivery", {})}
    lab.pipeline(
        connectors=[*(connectors or (source(),)), destination(), *late],
        processors=[DECODE, *processors],
        delivery=delivery,
        **{"dead-letter-queue": queue(), **more},
    )


def events(lab: Lab, *kinds: str) -> list[dict[str, Any]]:
    with lab.store() as database:
        found = [row for row in newest_events(database, "p", 1000) if row["event"] in kinds]
    return [{"event": row["event"], **row["detail"]} for row in reversed(found)]


def offsets(lab: Lab) -> dict[tuple[str, str], int]:
    with lab.store() as database:
        rows = offset_rows(database, "p")
    return {(row["consumer"], row["source"]): row["offset"] for row in rows if row["namespace"] == "*"}


def test_it_gets_what_the_log_holds_and_then_what_is_new(lab: Lab) -> None:
    build(lab, LATE)
    result = lab.run()
    assert result.error is None
    assert lab.documents("late.jsonl") == ALL
    assert lab.documents("out.jsonl") == ALL
    assert events(lab, "catch_up") == [
        {"event": "catch_up", "consumer": "late", "source": "in", "first": 0, "upto": 40}
    ]
    assert offsets(lab) == {(name, "in"): 49 for name in ("dead_letters", "out", "late")}
    # it is known from here on
    lab.write("in.jsonl", [{"i": 50}], mode="a")
    assert lab.run().progress.read == 1
    assert lab.documents("late.jsonl") == lab.documents("out.jsonl") == [*ALL, {"i": 50}]


def test_without_asking_it_starts_at_the_boundary(lab: Lab) -> None:
    build(lab, destination("late"))
    assert lab.run().error is None
    assert lab.documents("late.jsonl") == NEW
    # and it is no longer new when it asks
    build(lab, LATE)
    assert lab.run().progress.read == 0
    assert lab.documents("late.jsonl") == NEW


POINTS = (
    "after-register", "before-plan", "after-plan", "after-stage", "before-prepare", "after-prepare", "before-publish",
    "after-publish", "after-delivered", "before-done", "after-done", "after-ack",
)  # fmt: skip


@pytest.mark.parametrize("passage", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_after_a_crash_it_has_every_record_once(lab: Lab, crashes: Crashes, point: str, passage: int) -> None:
    build(lab, LATE)
    crashes(lab, point if point == "after-register" else f"{point}:{passage}")
    assert lab.run().error is None
    assert lab.documents("late.jsonl") == ALL
    assert lab.documents("out.jsonl") == ALL


@pytest.mark.parametrize("strategy", ["at-least-once", "at-most-once"])
def test_under_other_strategies(lab: Lab, strategy: str) -> None:
    build(lab, LATE, delivery={"strategy": strategy, "max-in-flight": 2})
    assert lab.run().error is None
    assert lab.documents("late.jsonl") == lab.documents("out.jsonl") == ALL


def test_nothing_new_is_read_before_it_has_caught_up(lab: Lab) -> None:
    bad = processor("bad", "error", "after.i == 20", message="not this one")
    build(lab, {**LATE, "processors": [bad]}, **{"dead-letter-queue": queue(1, 0)})
    result = lab.run()
    assert result.error is not None
    assert result.error.message == "not this one"
    assert lab.documents("late.jsonl") == OLD[:20]
    assert lab.documents("out.jsonl") == OLD
    # its offset says what it has handled; the source's position is unchanged
    assert offsets(lab)["late", "in"] == 19
    build(lab, LATE)
    assert lab.run().error is None
    assert lab.documents("late.jsonl") == lab.documents("out.jsonl") == ALL


def test_one_record_makes_one_dead_letter_however_late_a_destination_is(tmp_path: Path, spark: SparkSession) -> None:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", OLD)
    seven = processor("seven", "error", "after.i == 7", message="seven")
    eight = processor("eight", "error", "after.i == 8", message="eight")
    build(lab, processors=[seven])
    assert lab.run().error is None
    build(lab, {**LATE, "processors": [eight]}, processors=[seven])
    assert lab.run().error is None
    assert [(node, after["i"]) for node, _, after in lab.letters()] == [("p:seven", 7), ("p:late:eight", 8)]
    assert [row["i"] for row in lab.documents("late.jsonl")] == [i for i in range(40) if i not in (7, 8)]
    # a second late destination makes none of them again
    later = {**destination("later", **{"start-from": "log"}), "processors": [eight]}
    build(lab, {**LATE, "processors": [eight]}, later, processors=[seven])
    assert lab.run().error is None
    assert len(lab.letters()) == 2
    assert len(lab.documents("later.jsonl")) == 38


def test_a_record_that_it_refuses_is_nacked_once(lab: Lab) -> None:
    script = Script(lab)
    script.says("late", refuse=[3, 4])
    build(lab, scripted("late", **{"start-from": "log"}), delivery={"strategy": "at-least-once"})
    assert lab.run().error is None
    assert [after["i"] for _, _, after in lab.letters()] == [3, 4]
    places = [base64.b64decode(row["position"]).decode().partition("/")[0] for row in lab.documents("dead.jsonl")]
    assert places == ["p:in", "p:in"]
    assert script.values("late") == list(range(50))


@pytest.mark.parametrize("fan_in", ["merge", "alternate"])
def test_of_several_sources(tmp_path: Path, spark: SparkSession, fan_in: str) -> None:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", OLD)
    lab.write("two.jsonl", [{"i": i} for i in range(100, 120)])
    both = (source(), {**source("./two.jsonl"), "id": "two"})
    build(lab, connectors=both, **{"fan-in": fan_in})
    assert lab.run().error is None
    build(lab, LATE, connectors=both, **{"fan-in": fan_in})
    assert lab.run().error is None
    numbers = [row["i"] for row in lab.documents("late.jsonl")]
    assert [i for i in numbers if i < 100] == list(range(40))
    assert [i for i in numbers if i >= 100] == list(range(100, 120))
    assert len(lab.documents("out.jsonl")) == 60


def test_of_a_compacted_log_it_gets_what_is_whole(tmp_path: Path, spark: SparkSession, crashes: Crashes) -> None:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", OLD)
    small = {"log-segment-size": "1KB", "batch-size": 10}
    build(lab, delivery=small)
    assert lab.run().error is None
    assert lab.run().error is None  # a run begins with a compaction
    build(lab, LATE, delivery=small)
    # nothing that it needs is compacted while it begins, nor afterwards
    crashes(lab, "after-done:1")
    assert lab.run().error is None
    (begun,) = events(lab, "catch_up")
    assert 0 < begun["first"] < begun["upto"] == 40
    assert lab.documents("late.jsonl") == OLD[begun["first"] :]


def test_with_retention_it_gets_what_other_destinations_handled_long_ago(lab: Lab) -> None:
    """Without it, the start of a run compacts all closed segments: test_of_a_compacted_log_it_gets_what_is_whole."""
    kept = {"log": "auto", "log-segment-size": "1KB", "batch-size": 10, "log-retention": {"time": "7d", "bytes": "1GB"}}
    for _ in range(2):
        build(lab, delivery=kept)
        assert lab.run().error is None
    build(lab, LATE, delivery=kept)
    assert lab.run().error is None
    assert lab.documents("late.jsonl") == lab.documents("out.jsonl") == ALL


def test_a_file_that_asks_no_more_gives_up_what_is_left_and_says_so(lab: Lab, crashes: Crashes) -> None:
    build(lab, LATE)
    crashes(lab, "after-done:1")
    build(lab, destination("late"))
    assert lab.run().error is None
    assert lab.documents("late.jsonl") == [*OLD[:15], *NEW]
    assert events(lab, "catch_up_dropped") == [
        {"event": "catch_up_dropped", "consumer": "late", "source": "in", "first": 15, "upto": 40}
    ]


def test_it_goes_on_when_a_source_that_was_away_is_back(lab: Lab, crashes: Crashes) -> None:
    build(lab, LATE)
    crashes(lab, "after-done:1")
    assert len(lab.documents("late.jsonl")) == 15
    lab.write("other.jsonl", [{"i": 100}])
    build(lab, LATE, connectors=[{**source("./other.jsonl"), "id": "other"}])
    assert lab.run().error is None
    assert events(lab, "catch_up_dropped") == []
    build(lab, LATE)
    assert lab.run().error is None
    assert lab.documents("late.jsonl") == [*OLD[:15], {"i": 100}, *OLD[15:], *NEW]


def test_a_prepared_step_is_delivered_though_the_file_asks_no_more(lab: Lab, crashes: Crashes) -> None:
    build(lab, LATE)
    crashes(lab, "after-prepare")
    build(lab, destination("late"))
    assert lab.run().error is None
    (dropped,) = events(lab, "catch_up_dropped")
    assert 0 < dropped["first"] < dropped["upto"] == 40
    assert lab.documents("late.jsonl") == [*OLD[: dropped["first"]], *NEW]


def test_one_that_is_removed_while_it_catches_up_is_retired(lab: Lab, crashes: Crashes) -> None:
    build(lab, LATE)
    crashes(lab, "after-prepare")
    build(lab)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ALL
    assert lab.documents("late.jsonl") == []
    assert [row["event"] for row in events(lab, "consumer_retired", "catch_up_dropped")] == [
        "consumer_retired", "catch_up_dropped",
    ]  # fmt: skip
    with lab.store() as database, database.connect() as connection:
        assert load(connection, "p").sources.keys() == {"in"}
    assert {consumer for consumer, _ in offsets(lab)} == {"dead_letters", "out"}


def test_one_that_comes_back_gets_it_all_again(lab: Lab) -> None:
    build(lab, LATE)
    assert lab.run().error is None
    build(lab)
    assert lab.run().error is None
    build(lab, LATE)
    assert lab.run().error is None
    assert lab.documents("late.jsonl") == [*ALL, *ALL]
    assert lab.documents("out.jsonl") == ALL


@pytest.mark.parametrize(
    ("more", "where", "code"),
    [
        ({"delivery": {"log": "positions"}}, "connectors/2/start-from", "destination.needs_log"),
        ({"fan-in": "join"}, "connectors/2/start-from", "destination.needs_log"),
        ({"connectors": (source(**{"start-from": "log"}),)}, "connectors/0/start-from", "config.field_invalid"),
    ],
)
def test_where_there_is_no_log_to_start_from(lab: Lab, more: Any, where: str, code: str) -> None:
    build(lab, LATE, **more)
    found = [(finding.path, finding.code) for finding in lab.catalogue().findings]
    assert found == [(f"/pipelines/0/{where}", code)]


def test_it_asks_for_a_log(lab: Lab) -> None:
    build(lab, LATE, delivery={"log": "auto"})
    bound = lab.catalogue().get("p")
    assert bound is not None
    assert bound.log() == ("records", "the destination late starts from the log")
