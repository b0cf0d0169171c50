"""``log: records``: every step is read from the commit log."""

from __future__ import annotations

import base64
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.kills import hooked
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster import storage
from conduit_dagster.state.log_store import ActiveSegment, LogStore

ROWS = [{"i": i} for i in range(100)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


def build(lab: Lab, *processors: Any, **delivery: Any) -> None:
    delivery.setdefault("log", "records")
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, *processors],
        delivery=delivery,
        **{"dead-letter-queue": queue()},
    )


def logged(lab: Lab, spark: SparkSession) -> list[Any]:
    """The log as read by any Spark."""
    rows = spark.read.parquet(str(lab.root / ".conduit" / "log" / "p" / "in")).orderBy("offset").collect()
    return [(row.offset, json.loads(bytes(row.after))["i"], row.mode, row.operation, row.after_kind) for row in rows]


def test_a_source_that_advances_without_a_record_needs_no_folder_yet(lab: Lab) -> None:
    """A file of which nothing can be read yet is in the position, so that it is found after a rotation."""
    lab.write("in.jsonl", [])
    lab.pipeline(connectors=[source(), destination()], delivery={"log": "records"})
    assert lab.run().error is None
    lab.write("in.jsonl", ["a"], "a")
    assert lab.run().error is None
    assert lab.lines("out.jsonl") == ["a"]


def test_records_pass_through_the_log(lab: Lab, spark: SparkSession) -> None:
    build(lab, **{"batch-size": 30})
    result = lab.run()
    assert result.error is None
    assert (result.progress.read, result.progress.steps) == (100, 4)
    assert lab.documents("out.jsonl") == ROWS
    assert logged(lab, spark) == [(i, i, "sync", "create", "raw") for i in range(100)]
    lab.write("in.jsonl", [{"i": 100}], mode="a")
    assert lab.run().progress.read == 1
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 100}]
    assert lab.run().progress.read == 0


POINTS = (
    "before-log", "after-log-stage", "after-log", "after-plan", "after-stage", "after-prepare", "after-publish",
    "after-delivered", "after-done",
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_after_a_crash_every_record_is_there_once(lab: Lab, crashes: Crashes, spark: SparkSession, point: str) -> None:
    build(lab, processor("no", "error", "after.i == 7", message="seven"), **{"batch-size": 60})
    crashes(lab, point)
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == [i for i in range(100) if i != 7]
    assert [after["i"] for _, _, after in lab.letters()] == [7]
    assert [row[0] for row in logged(lab, spark)] == list(range(100))


def test_a_nacked_record_has_its_key_and_position_though_nothing_else_asks_for_them(lab: Lab) -> None:
    build(lab, processor("no", "error", "after.i == 7", message="seven"))
    assert lab.run().error is None
    (letter,) = (row["payload"]["after"] for row in lab.documents("dead.jsonl"))
    end = sum(len(line) + 1 for line in lab.lines("in.jsonl")[:8])
    assert [base64.b64decode(letter[name]) for name in ("key", "position")] == [b"8", b"%d" % end]


def test_the_log_outlives_its_source(lab: Lab, crashes: Crashes) -> None:
    build(lab)
    crashes(lab, "after-log")
    (lab.root / "in.jsonl").write_text("")
    result = lab.run()
    assert lab.documents("out.jsonl") == ROWS, result.error
    assert result.progress.read == len(ROWS)


def test_switching_the_log_on_and_off_reads_nothing_twice(lab: Lab) -> None:
    for number, log in enumerate(("positions", "records", "positions", "records"), 1):
        build(lab, log=log)
        result = lab.run()
        assert result.error is None, result.error
        lab.write("in.jsonl", [{"i": 100 * number}], mode="a")
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 100}, {"i": 200}, {"i": 300}]


def test_c19_a_full_segment_is_closed(lab: Lab) -> None:
    build(lab, **{"batch-size": 20, "log-segment-size": "1KB"})
    assert lab.run().error is None
    segments = sorted(path.name for path in (lab.root / ".conduit" / "log" / "p" / "in").iterdir())
    assert segments == [f"segment={first:020d}" for first in (0, 20, 40, 60, 80)]


def test_a_run_adds_up_its_segments_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of small steps has a hundred thousand files: no step may ask for all of them."""
    active, asked, size = LogStore.active, list[str](), 20_000

    def counted(store: LogStore, connection: sa.Connection, source: str) -> ActiveSegment:
        asked.append(source)
        return active(store, connection, source)

    monkeypatch.setattr(LogStore, "active", counted)
    for rows in (ROWS[:50], ROWS[50:]):
        lab.write("in.jsonl", rows, mode="w" if rows[0] == ROWS[0] else "a")
        build(lab, **{"batch-size": 5, "log-segment-size": size, "log-retention": {"time": "1h"}})
        assert lab.run().error is None
    assert asked == ["in", "in"]
    with lab.store() as database, database.connect() as connection:
        parts = LogStore("p").parts(connection, "in")
    assert len(parts) == 20
    segments = [list(some) for _, some in groupby(parts, lambda part: part.segment)]
    sizes = [[part.bytes for part in some] for some in segments]
    assert len(sizes) > 1
    assert all(sum(some) >= size > sum(some[:-1]) for some in sizes[:-1])


ONCE = '''
import json
from pathlib import Path

from conduit_dagster.sdk import Block, ConnectorSettings, Source, Split
from conduit_dagster.record import Record


class Queue(Source):
    """Gives what was not acked yet, and can't be read twice within a run."""

    name = "queue"
    replayable = False

    def _state(self):
        return Path(self.context.resolve("queue.json"))

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return len(json.loads(self._state().read_text()))

    def horizon(self):
        return {}

    def split(self, start, end, n):
        return [Split(start, 0)]

    def read(self, split, options):
        rows = json.loads(self._state().read_text())
        yield [Record(i + 1, {}, {"i": rows[i]}) for i in range(split.start, len(rows))]

    def ack(self, upto, generation):
        Path(self.context.resolve("acked.txt")).write_text(str(upto))
'''


def test_a_source_that_cannot_be_read_twice_is_logged_first(lab: Lab, crashes: Crashes) -> None:
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "queue.py").write_text(ONCE)
    (lab.root / "queue.json").write_text(json.dumps(list(range(5))))
    lab.pipeline(connectors=[{"id": "in", "type": "source", "plugin": "queue"}, destination()])
    bound = lab.catalogue().get("p")
    assert bound is not None
    assert bound.log() == ("records", "the source queue can't be read twice")
    crashes(lab, "after-stage")
    (lab.root / "queue.json").write_text(json.dumps([*range(5), 5]))
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(6))
    assert (lab.root / "acked.txt").read_text() == "6"


@pytest.mark.parametrize("log", ["records", "positions"])
def test_the_folders_that_lead_to_a_new_log_and_to_staging_are_durable_first(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    """Before the manifest names a file, or a step is prepared: a crash may lose a folder with an unsynced parent."""
    synced, moments = set[str](), dict[str, set[str]]()
    sync = storage.sync

    def noted(url: str) -> None:
        sync(url)
        synced.add(url.rstrip("/"))

    monkeypatch.setattr(storage, "sync", noted)
    lab.write("in.jsonl", [{"i": 1}])
    lab.pipeline(connectors=[source(), destination()], delivery={"log": log})
    with hooked(lambda point, pipeline: moments.setdefault(point, set(synced))):
        assert lab.run().error is None
    home = lab.root / ".conduit"
    assert {str(home), str(home / "staging"), str(home / "staging" / "p")} <= moments["before-prepare"]
    if log == "records":
        assert {str(lab.root), str(home), str(home / "log"), str(home / "log" / "p")} <= moments["after-log"]
