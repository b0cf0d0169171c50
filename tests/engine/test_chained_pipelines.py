"""A pipeline that reads the log of another one, on real Spark: ``a`` logs, ``p`` reads ``a``."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from lab.chain_lab import ROWS, SMALL, chained, downstream, entries, readers, rewound, runs, upstream
from lab.support import DECODE, Crashes, Lab, destination, processor, source
from pyspark.sql import SparkSession

from conduit_dagster import storage
from conduit_dagster.config.project import Project
from conduit_dagster.engine.operate.rewind import RewindTarget
from conduit_dagster.engine.trial.trace import dry_run

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


def whole(lab: Lab, name: str) -> list[Any]:
    return [json.loads(line) for line in lab.lines(name)]


def test_it_reads_what_was_logged_and_goes_on_where_it_stands(lab: Lab) -> None:
    upstream(lab)
    downstream(lab, delivery={"batch-size": 30})
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == ROWS
    lab.write("in.jsonl", [{"i": 100}], mode="a")
    runs(lab, "a")
    result = lab.run()
    assert (result.error, result.progress.read) == (None, 1)
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 100}]
    assert lab.run().progress.read == 0
    assert readers(lab) == {"p:in": 101}


def test_metadata_stays_but_for_who_read_it_and_when(lab: Lab) -> None:
    upstream(lab, source(processors=[]), destination("first", settings={"path": "./first.jsonl"}))
    downstream(lab, chained(), destination("out", settings={"path": "./out.jsonl"}), processors=[])
    runs(lab, "a", "p")
    first, second = whole(lab, "first.jsonl")[7], whole(lab, "out.jsonl")[7]
    assert second["metadata"]["file.path"] == first["metadata"]["file.path"] == "./in.jsonl"
    assert (first["metadata"]["conduit.source.connector.id"], second["metadata"]["conduit.source.connector.id"]) == (
        "a:in",
        "p:in",
    )
    assert int(second["metadata"]["opencdc.readAt"]) > int(first["metadata"]["opencdc.readAt"])
    assert (second["payload"], second["key"], second["operation"]) == (
        first["payload"],
        first["key"],
        first["operation"],
    )


def test_with_nothing_logged_there_is_nothing_to_read(lab: Lab) -> None:
    upstream(lab)
    downstream(lab)
    result = lab.run()
    assert (result.error, result.progress.read) == (None, 0)
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == ROWS


def test_a_log_that_begins_further_on_is_read_from_its_beginning(lab: Lab) -> None:
    """Records from before the log was enabled were never in it."""
    upstream(lab, delivery={"log": "positions"})
    runs(lab, "a")
    upstream(lab)
    downstream(lab)
    runs(lab, "p")
    lab.write("in.jsonl", [{"i": 100}, {"i": 101}], mode="a")
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == [{"i": 100}, {"i": 101}]
    assert readers(lab) == {"p:in": 102}


STARTING = ("after-fence", "after-register", "after-reack")
STEPS = (
    "before-plan", "after-plan", "before-stage", "after-stage", "before-prepare", "after-prepare", "before-publish",
    "mid-publish", "after-publish", "after-delivered", "before-done", "after-done", "after-ack",
)  # fmt: skip


@pytest.mark.parametrize("point", [*STARTING, *STEPS, *(f"{point}:2" for point in STEPS)])
def test_after_a_crash_every_record_is_there_once(lab: Lab, crashes: Crashes, point: str) -> None:
    upstream(lab)
    downstream(lab, delivery={"batch-size": 60})
    runs(lab, "a")
    crashes(lab, point)
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS
    assert readers(lab) == {"p:in": 100}


@pytest.mark.parametrize("point", ["after-log-stage", "after-log", "after-plan", "after-prepare", "after-done"])
def test_of_a_reader_that_logs_its_records_as_well(lab: Lab, crashes: Crashes, point: str) -> None:
    """The other pipeline's log need not keep what is in its own log."""
    upstream(lab)
    downstream(lab, delivery={"log": "records", "batch-size": 60})
    runs(lab, "a")
    crashes(lab, point)
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS
    assert readers(lab) == {"p:in": 100}


def test_a_source_that_leaves_its_file_is_no_reader_any_more(lab: Lab) -> None:
    upstream(lab)
    downstream(lab)
    runs(lab, "a", "p")
    downstream(lab, source(), destination("out"))
    lab.write("in.jsonl", [])
    runs(lab, "p")
    assert readers(lab) == {}
    downstream(lab, {**source(), "id": "two"}, destination("out"))
    runs(lab, "p")
    downstream(lab, chained(name="three"), {**source(), "id": "two"}, destination("out"))
    runs(lab, "p")
    assert readers(lab) == {"p:three": 100}
    downstream(lab, {**source(), "id": "two"}, destination("out"))
    runs(lab, "p")
    assert readers(lab) == {}


def test_the_other_pipeline_is_rewound_and_its_log_has_nothing_new(lab: Lab) -> None:
    """Its own consumers get the records again; the log has them once, and so does its reader."""
    upstream(lab)
    downstream(lab)
    runs(lab, "a", "p")
    rewound(lab, "a", "in", RewindTarget("start"))
    runs(lab, "a", "p")
    assert lab.documents("first.jsonl") and len(lab.lines("first.jsonl")) == 200
    assert lab.documents("out.jsonl") == ROWS


def test_nacks_of_a_joins_sources_are_not_given_on(lab: Lab) -> None:
    lab.write("two.jsonl", ROWS)
    bad = processor("bad", "error", "after.i % 10 == 3", message="a three")
    two = {**source("./two.jsonl", processors=[DECODE, bad]), "id": "two"}
    upstream(lab, source(processors=[DECODE]), two, destination("first"), **{"fan-in": "join"})
    downstream(lab, chained(connector="two"), destination("out"), processors=[], delivery={"batch-size": 17})
    runs(lab, "a")
    result = lab.run()
    assert result.error is None
    assert lab.documents("out.jsonl") == [row for row in ROWS if row["i"] % 10 != 3]
    assert result.progress.read == 90
    assert len(lab.letters("dead-a.jsonl")) == 10
    assert lab.letters("dead-p.jsonl") == []


def test_dead_letters_of_the_reader_are_its_own(lab: Lab) -> None:
    upstream(lab)
    bad = processor("bad", "error", "after.i == 7", message="seven")
    downstream(lab, processors=[DECODE, bad])
    runs(lab, "a", "p")
    assert lab.letters("dead-p.jsonl") == [("p:bad", "seven", {"i": 7})]
    assert lab.letters("dead-a.jsonl") == []
    downstream(lab)
    assert lab.replay()["replayed"] == 1
    assert lab.documents("out.jsonl")[-1] == {"i": 7}


def test_a_chain_of_three(lab: Lab) -> None:
    upstream(lab)
    downstream(lab, delivery={"log": "records"})
    downstream(lab, chained("p"), destination("third"), id="q", processors=[])
    runs(lab, "a", "p", "q")
    # the log has what p read: its own processors run after it
    assert lab.documents("third.jsonl") == ROWS
    assert readers(lab, "p") == {"q:in": 100}


def test_a_log_that_is_gone_is_an_error_that_names_it(lab: Lab) -> None:
    upstream(lab)
    downstream(lab)
    runs(lab, "a", "p")
    upstream(lab, delivery={"log": "positions"})
    lab.write("in.jsonl", [{"i": 100}], mode="a")
    runs(lab, "a")
    upstream(lab)  # as if the file had not been validated in between
    result = lab.run()
    assert result.error is not None and result.error.fatal
    assert result.error.code == "chain.log_gone"
    lab.write("in.jsonl", [{"i": 101}], mode="a")
    runs(lab, "a")
    result = lab.run()
    assert result.error is not None
    assert (result.error.code, "100 to 100" in result.error.message) == ("chain.log_gap", True)
    assert lab.documents("out.jsonl") == ROWS


def test_a_file_of_the_log_that_is_lost_is_no_gap_that_is_passed_over(lab: Lab) -> None:
    upstream(lab)
    downstream(lab)
    runs(lab, "a")
    base = Project.find(lab.root).log_url
    for path in Path(storage.local_path(base) or base, "a", "in").rglob("*.parquet"):
        path.unlink()
    result = lab.run()
    assert result.error is not None and result.error.fatal
    assert result.error.code == "log.missing"
    assert "conduit-dagster positions rewind p in --to 100 --force" in (result.error.fix or "")
    assert lab.documents("out.jsonl") == []


def test_a_dry_run_reads_the_log_and_makes_no_reader_and_no_store(lab: Lab) -> None:
    upstream(lab)
    downstream(lab)

    def tried() -> list[Any]:
        bound = lab.catalogue().get("p")
        assert bound is not None
        return [one.arrived["out"][0]["payload"]["after"] for one in dry_run(bound, 3)]

    assert tried() == []
    assert not (lab.root / ".conduit").exists()
    runs(lab, "a")
    assert tried() == ROWS[:3]
    assert readers(lab) == {}


def test_two_logs_of_other_pipelines_are_joined(lab: Lab) -> None:
    lab.write("two.jsonl", [{"i": i} for i in range(1000, 1050)])
    upstream(lab)
    lab.pipeline(id="b", connectors=[source("./two.jsonl"), destination("second")], delivery={"log": "records"})
    total = processor("sum", "field.set", field=".Payload.After.sum", expression="after.one.i + after.two.i")
    both = [chained(name="one", processors=[DECODE]), chained("b", name="two", processors=[DECODE])]
    downstream(lab, *both, destination("out"), processors=[total], **{"fan-in": "join"})
    runs(lab, "a", "b", "p")
    assert [row["sum"] for row in lab.documents("out.jsonl")] == [1000 + 2 * i for i in range(50)]
    assert (readers(lab), readers(lab, "b")) == ({"p:one": 100}, {"p:two": 50})


@pytest.mark.parametrize("delivery", [{}, {"max-in-flight": 2}, {"log": "records"}])
def test_both_at_once_while_the_log_rolls_and_is_compacted(lab: Lab, delivery: Any) -> None:
    """The reader follows while every few entries close a segment."""
    lab.write("in.jsonl", [])
    upstream(lab, delivery={**SMALL, "batch-size": 25})
    downstream(lab, delivery={"batch-size": 40, **delivery})
    runs(lab, "p")
    over = threading.Event()

    def write() -> None:
        try:
            for round_ in range(15):
                lab.write("in.jsonl", [{"i": 50 * round_ + i} for i in range(50)], mode="a")
                runs(lab, "a")
        finally:
            over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        runs(lab, "p")
    writer.join()
    runs(lab, "p", "a")
    assert lab.documents("out.jsonl") == [{"i": i} for i in range(750)]
    assert sum(entries(lab)[:-1]) == len(entries(lab)) - 1


def test_each_destination_goes_at_its_own_pace(lab: Lab) -> None:
    """As docs/chained-pipelines.md says: a destination that is away holds up no other one, nor the intake."""
    everything = {"id": "all", "plugin": "filter"}
    none = {"id": "none", "type": "destination", "plugin": "builtin:log"}
    upstream(lab, source(), none, processors=[everything], delivery={"strategy": "at-least-once"})
    away = {"path": "./slow.jsonl", "fail-on": "publish", "code": "503", "while": "away"}
    lab.pipeline(
        id="slow",
        connectors=[chained(), {"id": "out", "type": "destination", "plugin": "builtin:chaos", "settings": away}],
        delivery={"strategy": "exactly-once"},
    )
    downstream(lab, id="fast")
    lab.write("away", [])
    runs(lab, "a")
    error = lab.run("slow").error
    assert error is not None
    assert not error.fatal
    runs(lab, "fast")
    lab.write("in.jsonl", [{"i": 100}], mode="a")
    runs(lab, "a", "fast")
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 100}]
    assert readers(lab) == {"fast:in": 101, "slow:in": 0}
    (lab.root / "away").unlink()
    runs(lab, "slow")
    assert readers(lab) == {"fast:in": 101, "slow:in": 101}
    assert lab.documents("slow.jsonl") == [*ROWS, {"i": 100}]
