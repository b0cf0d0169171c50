"""``Source.resume``: what a source receives when a run begins (reference 4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.support import Crashes, Lab, destination, queue
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TEXT = '''
import json
from pathlib import Path

from conduit_dagster.record import Record
from conduit_dagster.sdk import Source, Split


class Resuming(Source):
    """Gives the records of a file of JSON lists, and writes down what it is told."""

    name = "resuming"

    def _rows(self):
        return json.loads(Path(self.context.resolve("rows.json")).read_text())

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return min(len(self._rows()), start + 3)

    def split(self, start, end, n):
        return [Split(start, 0, end - start, detail={"to": end})]

    def read(self, split, options):
        rows = list(enumerate(self._rows()))[split.start : split.detail["to"]]
        yield [
            Record(i + 1, {"opencdc.collection": name, "conduit.mode": mode}, {"i": i}, {"id": i})
            for i, (name, mode) in rows
        ]

    def collection_modes(self, position):
        told = Path(self.context.resolve("modes.json"))
        return json.loads(told.read_text()) if told.exists() else {}

    def resume(self, state):
        last = state.last and [str(state.last.position), state.last.key, state.last.collection]
        with Path(self.context.resolve("told.jsonl")).open("a") as file:
            file.write(json.dumps([state.position, last, dict(state.collections)]) + "\\n")
'''
ROWS = [["a", "copy"], ["b", "copy"], ["a", "complete"], ["b", "copy"], ["a", "sync"]]
MODES = {"a": "sync", "b": "copy"}


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "resuming.py").write_text(TEXT)
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    return Lab(tmp_path, spark)


def build(lab: Lab, **delivery: Any) -> None:
    lab.pipeline(
        connectors=[{"id": "in", "type": "source", "plugin": "resuming"}, destination()],
        delivery=delivery,
        **{"dead-letter-queue": queue()},
    )


def told(lab: Lab) -> list[Any]:
    return lab.documents("told.jsonl")


def test_without_a_log_it_gets_position_and_modes(lab: Lab) -> None:
    build(lab, log="positions")
    for _ in range(2):
        assert lab.run().error is None
    assert told(lab) == [[0, None, {}], [5, None, MODES]]


def test_with_a_log_it_gets_the_last_record_too(lab: Lab) -> None:
    """Also one that compaction has passed: the active segment is never touched."""
    build(lab, log="records", **{"log-segment-size": "1B"})
    for _ in range(2):
        assert lab.run().error is None
    assert told(lab) == [[0, None, {}], [5, ["5", {"id": 4}, "a"], MODES]]


def test_what_the_source_knows_of_a_collection_goes_before_what_its_last_record_says(lab: Lab) -> None:
    build(lab, log="positions")
    assert lab.run().error is None
    (lab.root / "modes.json").write_text(json.dumps({"b": "complete", "c": "copy"}))
    assert lab.run().error is None
    assert told(lab)[-1] == [5, None, {"a": "sync", "b": "complete", "c": "copy"}]


def test_records_that_are_logged_and_not_delivered_count(lab: Lab, crashes: Crashes) -> None:
    """Killed right after the second range was logged: the source continues after it, and so do its modes."""
    build(lab, log="records")
    crashes(lab, "after-log:2")
    (lab.root / "told.jsonl").unlink()
    assert lab.run().error is None
    ((position, last, modes),) = told(lab)
    assert (position, last, modes) == (5, ["5", {"id": 4}, "a"], MODES)
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(5))


def test_a_log_that_lost_its_last_file_is_no_reason_to_stop(lab: Lab) -> None:
    """Everything is delivered: only a step that needs an entry stops with ``log.missing``."""
    build(lab, log="records")
    assert lab.run().error is None
    for file in (lab.root / ".conduit" / "log" / "p" / "in").rglob("*.parquet"):
        file.unlink()
    assert lab.run().error is None
    assert told(lab)[-1] == [5, None, MODES]
