"""CASES.md, section D: exactly once; and of section A what acks, failures and restarts mean."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from lab.delta_rows import column
from lab.operating import code_of
from lab.scripted import Script, scripted
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.state.overview import collection_rows, pipeline_rows, source_rows

ROWS = [{"i": i} for i in range(6)]
LAYOUTS = ("file", "folder", "delta")


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


def out(layout: str) -> dict[str, Any]:
    if layout == "delta":
        return {"id": "out", "type": "destination", "plugin": "builtin:delta", "settings": {"path": "./table"}}
    return destination("out", "./out.jsonl" if layout == "file" else "./out/")


def build(lab: Lab, layout: str, *processors: Any, **more: Any) -> None:
    more.setdefault("dead-letter-queue", queue())
    lab.pipeline(
        connectors=[source(), out(layout)],
        processors=[DECODE, *processors],
        delivery={"strategy": "exactly-once"},
        **more,
    )


def delivered(lab: Lab, layout: str) -> list[int]:
    if layout == "delta":
        return column(lab.root / "table", "i")
    if layout == "file":
        return [row["i"] for row in lab.documents("out.jsonl")]
    return [json.loads(line)["i"] for part in sorted((lab.root / "out").rglob("part-*")) for line in part.open()]


def assert_once(lab: Lab, layout: str, wanted: list[int]) -> None:
    assert lab.run().error is None
    assert delivered(lab, layout) == wanted
    assert lab.run().progress.read == 0
    assert delivered(lab, layout) == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_d04_an_attempt_that_was_recorded_and_not_committed_is_retried(lab: Lab, crashes: Crashes, layout: str) -> None:
    build(lab, layout)
    crashes(lab, "after-prepare")
    assert_once(lab, layout, list(range(6)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_d05_a_committed_output_is_not_repeated(lab: Lab, crashes: Crashes, layout: str) -> None:
    build(lab, layout)
    crashes(lab, "after-publish")
    before = delivered(lab, layout)
    assert before == list(range(6))
    assert_once(lab, layout, before)


def test_d06_another_writer_took_the_provisional_index(lab: Lab, crashes: Crashes) -> None:
    """In a Delta table another commit takes the intended version; the attempt is retried after it."""
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(lab.root / "table"), pa.table({"i": [100]}))
    build(lab, "delta")
    crashes(lab, "mid-publish")
    write_deltalake(str(lab.root / "table"), pa.table({"i": [101]}), mode="append")
    assert_once(lab, "delta", [*range(6), 100, 101])


@pytest.mark.parametrize("point", ["after-prepare", "before-done", "after-done"])
def test_d07_a_step_without_output_is_not_repeated(lab: Lab, crashes: Crashes, point: str) -> None:
    build(lab, "file", processor("none", "filter", "True"))
    crashes(lab, point)
    result = lab.run()
    assert result.error is None
    # the step at the crash is the only one there ever was
    assert result.progress.steps == (0 if point == "after-done" else 1)
    assert lab.lines("out.jsonl") == []
    assert lab.run().progress.read == 0
    with lab.store() as database:
        [row] = source_rows(database, "p")
        assert (row["records"], row["filtered"]) == (6, 6)
        assert pipeline_rows(database)["p"]["step"] == 1


@pytest.mark.parametrize("point", ["after-prepare", "mid-publish", "after-publish"])
def test_d08_a_dead_letter_is_written_once(lab: Lab, crashes: Crashes, point: str) -> None:
    """Recorded and not committed: retried; committed: not repeated."""
    build(lab, "file", processor("odd", "error", "after.i % 2 == 1", message="odd"))
    crashes(lab, point)
    assert_once(lab, "file", [0, 2, 4])
    assert [after["i"] for _, _, after in lab.letters()] == [1, 3, 5]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_d09_recovery_that_is_killed_at_any_line_ends_in_the_same_state(
    lab: Lab, crashes: Crashes, layout: str
) -> None:
    build(lab, layout, processor("odd", "error", "after.i % 2 == 1", message="odd"))
    for point in (
        "after-stage", "after-prepare", "after-reack", "before-publish", "mid-publish", "after-publish", "before-done"
    ):  # fmt: skip
        crashes(lab, point)
    assert_once(lab, layout, [0, 2, 4])
    assert [after["i"] for _, _, after in lab.letters()] == [1, 3, 5]


def test_d10_a_pipeline_that_never_ran_starts_from_the_beginning(lab: Lab, crashes: Crashes) -> None:
    build(lab, "file")
    crashes(lab, "before-plan")
    assert_once(lab, "file", list(range(6)))


def test_d12_a_destination_that_stores_the_hash_with_its_result_has_one_row(lab: Lab) -> None:
    """At least once, and its own side effect once: whatever the number of attempts."""
    script = Script(lab)
    lab.pipeline(connectors=[source(), scripted()], processors=[DECODE], **{"dead-letter-queue": queue()})
    script.says(outage=[5])
    for _ in range(3):
        assert lab.run().error is not None
    script.says()
    assert lab.run().error is None
    store = sqlite3.connect(":memory:")
    store.execute("create table results (hash text primary key, total int)")
    rows = lab.documents("out.sent")
    assert len(rows) == 4
    for row in rows:
        store.execute("insert or ignore into results values (?, ?)", (row["hash"], sum(row["values"])))
    assert store.execute("select total from results").fetchall() == [(15,)]


# -- section A ------------------------------------------------------------------------------------------------------


def test_a07_when_the_dead_letter_write_fails_nothing_beyond_it_is_acked(lab: Lab) -> None:
    """Recoverable: once the queue can be written again, everything arrives once."""
    refuse = processor("refuse", "error", "after.i == 3", message="three")
    script = Script(lab)
    letters = {"plugin": "scripted", "settings": {"path": "dead.sent", "script": "dead.script.json"}}
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, refuse],
        **{"dead-letter-queue": {**letters, "window-size": 0}},
    )
    script.says("dead", outage=[3])
    result = lab.run()
    assert result.error is not None
    assert not result.error.fatal
    assert result.progress.acked == 0
    assert lab.lines("out.jsonl") == []
    script.says("dead")
    script.sent("dead")
    assert lab.run().error is None
    assert script.sent("dead") == [[3]]
    assert [row["i"] for row in lab.documents("out.jsonl")] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("second", ["scripted", "file"])
def test_a08_a_restart_sends_to_b_what_only_a_had(lab: Lab, second: str) -> None:
    """A receives it again only if it may: a destination that knows its deliveries does not."""
    script = Script(lab)
    a = scripted("a") if second == "scripted" else destination("a")
    lab.pipeline(connectors=[source(), a, scripted("b")], processors=[DECODE], **{"dead-letter-queue": queue(1, 0)})
    script.says("b", refuse=[3])
    result = lab.run()
    assert result.error is not None
    script.sent("b")
    script.says("b")
    assert lab.run().error is None
    assert script.values("b") == [3, 4, 5]
    if second == "file":
        assert [row["i"] for row in lab.documents("a.jsonl")] == list(range(6))
    else:
        assert script.values("a") == list(range(6))


def test_a10_after_an_error_in_flight_records_are_delivered_again_and_the_error_is_kept(lab: Lab) -> None:
    script = Script(lab)
    lab.pipeline(connectors=[source(), scripted()], processors=[DECODE], **{"dead-letter-queue": queue()})
    script.says(outage=[2])
    result = lab.run()
    assert result.status == "degraded"
    assert result.error is not None
    assert code_of(result) == "file.error"
    assert "the network is gone" in result.error.message
    with lab.store() as database:
        row = pipeline_rows(database)["p"]
    assert (row["status"], row["error"]["code"], row["error"]["fatal"]) == ("degraded", "file.error", False)
    script.sent()
    script.says()
    assert lab.run().error is None
    assert script.sent() == [list(range(6))]


# -- modes per collection (C20) -------------------------------------------------------------------------------------

COPYING = '''
from pathlib import Path

from conduit_dagster.sdk import ConnectorSettings, Source, Split
from conduit_dagster.record import Record


class Copying(Source):
    """Two collections: ``small`` has 3 rows to copy and ``large`` 6; changes of ``small`` follow its copy."""

    name = "copying"

    def initial(self):
        return 0

    def _rows(self):
        small = [("small", "snapshot", i) for i in range(3)]
        large = [("large", "snapshot", i) for i in range(6)]
        # interleaved: the copy of small ends while that of large is under way
        rows = [small[0], large[0], small[1], large[1], small[2], ("small", "update", 0)]
        rows += [large[2], ("small", "update", 1), large[3], large[4], large[5], ("large", "update", 0)]
        return rows

    def latest(self, start, limit, horizon=None):
        allowed = int(Path(self.context.resolve("upto")).read_text())
        return min(allowed, start + limit.records)

    def split(self, start, end, n):
        return [Split(start, 0, end - start, detail={"to": end})]

    def read(self, split, options):
        records = []
        for place in range(split.start, split.detail["to"]):
            collection, operation, i = self._rows()[place]
            metadata = {"opencdc.collection": collection}
            if (collection, operation, i) in (("small", "snapshot", 2), ("large", "snapshot", 5)):
                metadata["conduit.mode"] = "complete"
            records.append(Record(place + 1, metadata, {"i": i, "c": collection, "op": operation}, operation=operation))
        yield records
'''


def modes(lab: Lab) -> dict[str, str]:
    with lab.store() as database:
        return {row["namespace"]: row["mode"] for row in collection_rows(database, "p")}


@pytest.mark.parametrize("log", ["positions", "records"])
def test_c20_one_collection_goes_on_with_sync_and_the_other_resumes_its_copy(
    lab: Lab, crashes: Crashes, log: str
) -> None:
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "copying.py").write_text(COPYING)
    reads = {"id": "in", "type": "source", "plugin": "copying"}
    lab.pipeline(connectors=[reads, destination()], delivery={"strategy": "exactly-once", "log": log})
    (lab.root / "upto").write_text("5")
    assert lab.run().error is None
    assert modes(lab) == {"small": "complete", "large": "copy"}
    (lab.root / "upto").write_text("8")
    crashes(lab, "after-prepare")
    assert lab.run().error is None
    assert modes(lab) == {"small": "sync", "large": "copy"}
    (lab.root / "upto").write_text("11")
    assert lab.run().error is None
    assert modes(lab) == {"small": "sync", "large": "complete"}
    (lab.root / "upto").write_text("12")
    assert lab.run().error is None
    assert modes(lab) == {"small": "sync", "large": "sync"}
    rows = [(row["c"], row["op"], row["i"]) for row in lab.documents("out.jsonl")]
    assert len(rows) == len(set(rows)) == 12
    assert [i for c, op, i in rows if (c, op) == ("large", "snapshot")] == list(range(6))
