"""Splits based on an assumed number of records before them, and a source that fails after its last record."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from lab.support import Crashes, Lab, destination, processor, queue
from pyspark.sql import SparkSession

from conduit_dagster.state.tables import log_parts

GUESSING = """
from conduit_dagster.sdk import MISCOUNTED, Block, ConnectorSettings, FatalError, Record, Source, Split


class Guessing(Source):
    name = "guessing"
    Settings = ConnectorSettings

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return 9

    def split(self, start, end, n):
        if start == end:
            return []
        if n == 1 or start:
            return [Split(start, 0, None, 0, {"to": 9})]
        return [
            Split(0, 0, 5, 3_000_000, {"to": 5}, assumed=True),
            Split(5, 5, 4, 3_000_000, {"to": 9}, assumed=True),
        ]

    def read(self, split, options):
        with open(self.context.resolve("gone.txt")) as file:
            gone = set(map(int, file.read().split()))
        numbers = [n for n in range(split.start + 1, split.detail["to"] + 1) if n not in gone]
        yield Block([Record(n, {}, {"n": n}) for n in numbers], numbers.__getitem__)
        if FAILS and split.records in (None, len(numbers)):
            raise FatalError("it fails", code="file.changed")
        if split.records not in (None, len(numbers)) or MISCOUNTS:
            raise FatalError("one is missing", code=MISCOUNTED)
"""


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def build(lab: Lab, gone: str, log: str = "positions", fails: bool = False, miscounts: bool = False) -> None:
    """Numbers 1 to 9, some of which are missing; the eighth is refused."""
    plugin = GUESSING.replace("FAILS", str(fails)).replace("MISCOUNTS", str(miscounts))
    lab.write("plugins/guessing.py", [plugin])
    (lab.root / "gone.txt").write_text(gone)
    lab.pipeline(
        connectors=[{"id": "in", "type": "source", "plugin": "guessing", "settings": {}}, destination()],
        processors=[processor("refuse", "error", "after.n == 8", message="no")],
        delivery={"log": log},
        **{"dead-letter-queue": queue()},
    )


@pytest.mark.parametrize(
    ("gone", "delivered", "offset"), [("", [1, 2, 3, 4, 5, 6, 7, 9], 7), ("4", [1, 2, 3, 5, 6, 7, 9], 6)]
)
@pytest.mark.parametrize("log", ["positions", "records"])
def test_a_step_whose_splits_were_miscounted_is_staged_as_one(
    lab: Lab, log: str, gone: str, delivered: list[int], offset: int
) -> None:
    """A dead letter's offset is the record's real number, not the assumed one."""
    build(lab, gone, log)
    assert lab.run(parallelism=2).error is None
    assert [row["n"] for row in lab.documents("out.jsonl")] == delivered
    [letter] = lab.documents("dead.jsonl")
    assert letter["metadata"]["conduit.dlq.offset"] == str(offset)


@pytest.mark.parametrize(("gone", "files"), [("", 2), ("4", 1)])
def test_the_log_is_written_by_several_tasks_where_the_assumption_holds(lab: Lab, gone: str, files: int) -> None:
    """Otherwise by one, again: what was written at offsets that are not its own is in no manifest."""
    build(lab, gone, "records")
    assert lab.run(parallelism=2).error is None
    with lab.store() as database, database.connect() as connection:
        named = connection.execute(sa.select(log_parts.c.name, log_parts.c.first, log_parts.c.next)).all()
    assert len(named) == files
    assert (named[0].first, named[-1].next) == (0, 9 - len(gone.split()))


def test_a_kill_while_several_tasks_log_loses_and_doubles_nothing(lab: Lab, crashes: Crashes) -> None:
    build(lab, "4", "records")
    for point in ("before-log", "after-log-stage", "after-log"):
        crashes(lab, point)
    assert lab.run(parallelism=2).error is None
    assert [row["n"] for row in lab.documents("out.jsonl")] == [1, 2, 3, 5, 6, 7, 9]


def test_a_lost_step_that_would_be_counted_otherwise_now_is_refused(lab: Lab, crashes: Crashes) -> None:
    """Its decision is final: some of what it read is gone."""
    build(lab, "")
    crashes(lab, "after-prepare")
    shutil.rmtree(lab.root / ".conduit" / "staging")
    (lab.root / "gone.txt").write_text("4")
    error = lab.run(parallelism=2).error
    assert error is not None and error.code == "delivery.rebuild_differs"
    (lab.root / "gone.txt").write_text("")
    assert lab.run(parallelism=2).error is None
    assert [row["n"] for row in lab.documents("out.jsonl")] == [1, 2, 3, 4, 5, 6, 7, 9]


@pytest.mark.parametrize(("code", "fault"), [("split.miscounted", "miscounts"), ("file.changed", "fails")])
@pytest.mark.parametrize("log", ["positions", "records"])
def test_a_source_that_fails_behind_its_last_record_stops_the_pipeline(
    lab: Lab, code: str, fault: str, log: str
) -> None:
    """Also if it miscounts a split as well. The step was cut at its own end, again and again."""
    build(lab, "", log, **{fault: True})
    error = lab.run(parallelism=2).error
    assert error is not None and (error.code, error.node) == (code, "p:in")
    build(lab, "", log)
    assert lab.run(parallelism=2).error is None
    assert [row["n"] for row in lab.documents("out.jsonl")] == [1, 2, 3, 4, 5, 6, 7, 9]
