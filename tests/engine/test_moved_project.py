"""A project that is moved within its file system goes on where it was: paths inside it count relative to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from lab.support import DECODE, Crashes, Lab, destination, source
from pyspark.sql import SparkSession

ROWS = [{"i": i} for i in range(6)]


def moved(lab: Lab, spark: SparkSession) -> Lab:
    return Lab(lab.root.rename(lab.root.with_name("moved")), spark)


@pytest.mark.parametrize("path", ["./mid.jsonl", "./mid/"])
def test_a_reader_gets_what_was_published_before(tmp_path: Path, spark: SparkSession, path: str) -> None:
    """It read nothing, and ended as if it had read all, until the other pipeline published more."""
    (tmp_path / "here").mkdir()
    lab = Lab(tmp_path / "here", spark)
    lab.write("in.jsonl", ROWS[:4])
    lab.pipeline(connectors=[source(), destination("mid", path)], processors=[DECODE])
    read: dict[str, Any] = {"id": "in", "type": "source", "plugin": "pipeline"}
    lab.pipeline(
        id="q", connectors=[{**read, "settings": {"pipeline": "p", "connector": "mid"}}, destination(path="./q.jsonl")]
    )
    assert lab.run("p").error is None
    lab = moved(lab, spark)
    assert lab.run("q").error is None
    assert lab.documents("q.jsonl") == ROWS[:4]
    lab.write("in.jsonl", ROWS[4:], mode="a")
    assert (lab.run("p").error, lab.run("q").error) == (None, None)
    assert lab.documents("q.jsonl") == ROWS


def test_a_step_that_is_prepared_for_a_delta_table_is_finished(
    tmp_path: Path, spark: SparkSession, crashes: Crashes
) -> None:
    """It was refused as prepared for another table, which was to be put back where the project is no more."""
    (tmp_path / "here").mkdir()
    lab = Lab(tmp_path / "here", spark)
    lab.write("in.jsonl", ROWS)
    table = {"id": "out", "type": "destination", "plugin": "delta", "settings": {"path": "./table"}}
    lab.pipeline(connectors=[source(), table], processors=[DECODE])
    crashes(lab, "after-prepare")
    lab = moved(lab, spark)
    assert lab.run().error is None
    assert sorted(DeltaTable(lab.root / "table").to_pyarrow_table()["i"].to_pylist()) == list(range(6))


def test_a_file_that_another_writer_changed_is_still_noticed(tmp_path: Path, spark: SparkSession) -> None:
    """The pipeline went on behind it without a word, though ``if-changed`` says otherwise."""
    (tmp_path / "here").mkdir()
    lab = Lab(tmp_path / "here", spark)
    lab.write("in.jsonl", ROWS[:4])
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE])
    assert lab.run().error is None
    lab = moved(lab, spark)
    lab.write("out.jsonl", ["another writer's"], mode="a")
    lab.write("in.jsonl", ROWS[4:], mode="a")
    error = lab.run().error
    assert error is not None and error.code == "file.changed"
