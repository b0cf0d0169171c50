"""A split delivery with all of its children delivered, whose own mark is missing."""

from __future__ import annotations

import json
from pathlib import Path

from engine.frozen import ledger_plugin
from engine.frozen.ledger_plugin import ledger
from engine.frozen.owners import Owners
from lab.kills import crashing
from lab.support import DECODE, queue, source
from pyspark.sql import SparkSession


def test_children_are_not_sent_under_other_names(tmp_path: Path, spark: SparkSession) -> None:
    """Record 1 is rejected by name, so that 2 and 3 go as one child; killed before the delivery is marked."""
    owners = Owners(tmp_path, spark)
    owners.write("plugins/ledger.py", [ledger_plugin.TEXT])
    owners.write("in.jsonl", [{"i": i} for i in range(4)])
    (tmp_path / "orders.json").write_text(json.dumps({"reject": [1]}))
    delivery = {"strategy": "exactly-once"}
    owners.pipeline(
        connectors=[source(), ledger()], processors=[DECODE], delivery=delivery, **{"dead-letter-queue": queue()}
    )

    with crashing("after-publish"):
        owners.take()
    assert owners.ledger() == [0, 2, 3]
    assert owners.take().error is None
    assert owners.ledger() == [0, 2, 3]
