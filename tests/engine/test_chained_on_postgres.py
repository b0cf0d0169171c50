"""Chains with the state on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.chain_lab import chained, downstream, readers, runs, upstream
from lab.postgres_server import PostgresServer
from lab.support import Crashes, Lab, destination, source
from pyspark.sql import SparkSession

ROWS = [{"i": i} for i in range(100)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession, postgres_server: PostgresServer) -> Lab:
    lab = Lab(tmp_path, spark)
    (tmp_path / "conduit.yaml").write_text(f"state: {{url: '{postgres_server.create_database()}'}}\n")
    lab.write("in.jsonl", ROWS)
    return lab


@pytest.mark.slow
def test_a_log_is_read_over_a_crash_and_a_compaction(lab: Lab, crashes: Crashes) -> None:
    upstream(lab, delivery={"log-segment-size": "1KB", "batch-size": 10})
    downstream(lab, delivery={"batch-size": 20})
    runs(lab, "p", "a")
    crashes(lab, "after-plan:3")
    runs(lab, "a")
    assert readers(lab) == {"p:in": 40}
    runs(lab, "p", "a")
    assert lab.documents("out.jsonl") == ROWS
    assert readers(lab) == {"p:in": 100}
    assert not (lab.root / ".conduit" / "state.db").exists()


def test_an_output_is_read(lab: Lab, crashes: Crashes) -> None:
    upstream(lab, source(), destination("first"), delivery={"log": "positions"})
    downstream(lab, chained(connector="first"), destination("out"), processors=[], delivery={"batch-size": 40})
    runs(lab, "a")
    crashes(lab, "after-prepare:2")
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS
