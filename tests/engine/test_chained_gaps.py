"""A pipeline that reads an output that was written at-most-once for a while, where lines may be missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.chain_lab import chained, downstream, runs, upstream
from lab.kills import crashing
from lab.support import DECODE, Lab, destination, source
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def writes(lab: Lab, strategy: str, form: str) -> None:
    written: dict[str, Any] = {"path": "./first.jsonl", "sdk.record.format": form}
    delivery = {"log": "positions", "strategy": strategy}
    upstream(lab, source(), destination("first", settings=written), processors=[DECODE], delivery=delivery)


@pytest.mark.parametrize("form", ["opencdc/json", "payload/json"])
@pytest.mark.parametrize(("point", "delivered"), [("after-prepare", [0, 7]), ("mid-publish", [0, 1, 2, 3, 7])])
def test_what_was_not_delivered_is_no_record(lab: Lab, form: str, point: str, delivered: list[int]) -> None:
    """The file has line ends in its place; a step of the reader may consist of nothing else."""
    lab.write("in.jsonl", [{"i": 0}])
    writes(lab, "at-most-once", form)
    runs(lab, "a")
    lab.write("in.jsonl", [{"i": i} for i in range(1, 7)], mode="a")
    with crashing(point):
        lab.run("a")
    lab.write("in.jsonl", [{"i": 7}], mode="a")
    # as the finding chain.not_readable says: only then the output may be read
    writes(lab, "at-least-once", form)
    downstream(lab, chained(connector="first"), destination("out"), processors=[], delivery={"batch-size": 20})
    runs(lab, "a")
    result = lab.run()
    assert (result.error, result.progress.read) == (None, len(delivered))
    assert lab.documents("out.jsonl") == [{"i": i} for i in delivered]
    assert lab.run().progress.read == 0
