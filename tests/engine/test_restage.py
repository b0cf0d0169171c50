"""What a start stages again of a prepared step, and when."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lab.support import DECODE, Crashes, Lab, destination, processor, source
from pyspark.sql import SparkSession

ROWS = [{"i": i} for i in range(6)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


def build(lab: Lab, **settings: str) -> None:
    output = destination()
    output["settings"] |= settings
    lab.pipeline(connectors=[source(), output], processors=[DECODE])


def test_staged_bytes_that_the_disk_changed_are_not_delivered(lab: Lab, crashes: Crashes) -> None:
    """With their length kept they were, and acked."""
    build(lab)
    crashes(lab, "after-prepare")
    [part] = (lab.root / ".conduit" / "staging" / "p").glob("*/out/*.jsonl")
    part.write_bytes(bytes(part.stat().st_size))
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS


def test_a_destination_whose_staging_is_there_gets_it_whatever_the_others_lost(lab: Lab, crashes: Crashes) -> None:
    """It was rebuilt with theirs, and refused as changed."""

    def build_both(number: int) -> None:
        one = processor("one", "field.set", field=".Payload.After.n", value=str(number))
        lab.pipeline(connectors=[source(), destination("a"), destination("b", processors=[one])], processors=[DECODE])

    build_both(1)
    crashes(lab, "after-prepare")
    for folder in (lab.root / ".conduit" / "staging" / "p").glob("*/a"):
        shutil.rmtree(folder)
    build_both(2)
    assert lab.run().error is None
    assert lab.documents("a.jsonl") == ROWS
    assert lab.documents("b.jsonl") == [{**row, "n": "1"} for row in ROWS]


def test_foreign_lines_under_a_step_whose_staging_is_lost_are_adopted(lab: Lab, crashes: Crashes) -> None:
    """They were compared before it was staged again, and each run ended with the error whose fix this setting is."""
    build(lab, **{"if-changed": "adopt"})
    crashes(lab, "after-prepare")
    shutil.rmtree(lab.root / ".conduit" / "staging")
    lab.write("out.jsonl", [{"i": 9}])
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 9}, *ROWS]
