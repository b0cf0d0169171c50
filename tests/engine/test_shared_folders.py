"""Two projects that write into one folder or table: what one has staged there is left alone by the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lab.support import DECODE, Crashes, Lab, source
from pyspark.sql import SparkSession

ROWS = [{"i": i} for i in range(6)]


def project(root: Path, spark: SparkSession, rows: list[dict[str, int]], plugin: str, **settings: str) -> Lab:
    lab = Lab(root, spark)
    lab.write("in.jsonl", rows)
    to = {"id": "out", "type": "destination", "plugin": plugin, "settings": settings}
    lab.pipeline(connectors=[source(), to], processors=[DECODE])
    return lab


def rows_of(folder: Path, plugin: str) -> list[Any]:
    if plugin == "delta":
        return sorted(DeltaTable(str(folder)).to_pyarrow_table()["i"].to_pylist())
    return sorted(i for file in folder.glob("step=*/*.parquet") for i in pq.ParquetFile(file).read()["i"].to_pylist())


@pytest.mark.parametrize("plugin", ["delta", "parquet"])
def test_a_prepared_step_is_published_whatever_another_project_does(
    tmp_path: Path, spark: SparkSession, crashes: Crashes, plugin: str
) -> None:
    """What it had staged was taken for remains of the other project's runs; its source need not be there any more."""
    table = tmp_path / "table"
    apps = ({"app-id": "a"}, {"app-id": "b"}) if plugin == "delta" else ({}, {})
    first = project(tmp_path / "a", spark, ROWS[:3], plugin, path=str(table), **apps[0])
    second = project(tmp_path / "b", spark, ROWS[3:], plugin, path=str(table), **apps[1])
    crashes(first, "after-prepare")
    for _ in range(2):  # its epoch is higher then
        assert second.run().error is None
    (first.root / "in.jsonl").unlink()
    result = first.run()
    assert rows_of(table, plugin) == [row["i"] for row in ROWS], result.error


def test_a_step_that_the_table_has_of_another_project_is_added_under_an_app_id_of_its_own(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The fix was refused as a changed target, whose fix was to set it back."""
    table = tmp_path / "table"
    first, second = (project(tmp_path / name, spark, ROWS[:3], "delta", path=str(table)) for name in "ab")
    assert first.run().error is None
    refused = second.run().error
    assert refused is not None and refused.code == "delta.transaction_taken"
    assert refused.fix is not None and "an app-id of its own" in refused.fix
    second = project(second.root, spark, ROWS[:3], "delta", path=str(table), **{"app-id": "b"})
    for _ in range(2):
        assert second.run().error is None
    assert rows_of(table, "delta") == sorted([row["i"] for row in ROWS[:3]] * 2)
