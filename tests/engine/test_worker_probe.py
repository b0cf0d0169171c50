"""What ``doctor --deep`` asks Spark's workers; with a worker that lacks a folder: tests/spark/test_cluster.py."""

from __future__ import annotations

from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.worker_probe import WorkerReport, _look, workers


def _seen(file: Path) -> WorkerReport:
    return msgspec.msgpack.decode(_look({"staging": str(file)}, 7), type=WorkerReport)


def test_folders_that_are_the_drivers(tmp_path: Path, spark: SparkSession) -> None:
    folders = {"staging": (tmp_path / "staging").as_uri(), "log": str(tmp_path / "log"), "else": "s3://bucket/log"}
    found = workers(Jobs(spark, "doctor"), folders)
    assert len(found) >= 4
    assert {(*worker.missing, *worker.refused) for worker in found} == {()}
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["log", "staging"]


def test_a_folder_that_is_another_one(tmp_path: Path) -> None:
    seen = _seen(tmp_path / "~doctor-1")
    assert (seen.missing, seen.refused) == (["staging"], {})


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    longest = tmp_path / ("x" * 255)
    longest.touch()
    seen = _seen(longest)
    assert (seen.missing, seen.refused) == ([], {"staging": "File name too long"})
