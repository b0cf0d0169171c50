"""A pipeline that reads the log of another one, on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain_lab import downstream, readers, runs, upstream
from pyspark.sql import SparkSession
from support import Lab

ROWS = [{"i": i} for i in range(100)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


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
