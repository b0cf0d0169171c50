"""A split delivery whose children are all there, and whose own mark is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine.frozen import ledger_plugin
from engine.frozen.ledger_plugin import ledger
from engine.frozen.owners import Owners
from pyspark.sql import SparkSession
from support import DECODE, Crash, queue, source

from conduit_dagster.recovery import kill_points


def test_children_are_not_sent_under_other_names(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record 1 is rejected by name, so that 2 and 3 go as one child; killed before the delivery is marked."""
    owners = Owners(tmp_path, spark)
    owners.write("plugins/ledger.py", [ledger_plugin.TEXT])
    owners.write("in.jsonl", [{"i": i} for i in range(4)])
    (tmp_path / "orders.json").write_text(json.dumps({"reject": [1]}))
    delivery = {"strategy": "exactly-once"}
    owners.pipeline(
        connectors=[source(), ledger()], processors=[DECODE], delivery=delivery, **{"dead-letter-queue": queue()}
    )

    def die(point: str, pipeline: str) -> None:
        if point == "after-publish":
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(kill_points, "hook", die)
        owners.take()
    if owners.ledger() != [0, 2, 3]:
        pytest.fail(f"the scenario: {owners.ledger()}")
    assert owners.take().error is None
    assert owners.ledger() == [0, 2, 3]
