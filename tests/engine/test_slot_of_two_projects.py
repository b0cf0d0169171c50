"""Two projects with one slot, such as a test and a production system with the same files: it is the first one's."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from lab.postgres_server import PostgresServer
from lab.support import Lab, destination
from pyspark.sql import SparkSession

from conduit_dagster.cli.main import main

pytestmark = pytest.mark.slow


def project(root: Path, spark: SparkSession, url: str) -> Lab:
    lab = Lab(root, spark)
    root.mkdir()
    (root / "conduit.yaml").touch()
    given = {"id": "in", "type": "source", "plugin": "postgres", "settings": {"url": url, "tables": "t"}}
    lab.pipeline(connectors=[given, destination()])
    return lab


def test_a_slot_of_another_project_is_not_taken(
    tmp_path: Path, spark: SparkSession, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read on by the second project, so that the first one lost changes, and dropped with its pipeline."""
    url = postgres_server.create_database()
    first, second = (project(tmp_path / one, spark, url) for one in "ab")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
        assert first.run().error is None
        connection.execute("INSERT INTO t VALUES (2)")
        error = second.run().error
        assert error is not None and (error.code, error.fatal) == ("postgres.slot_taken", True)
        monkeypatch.chdir(second.root)
        assert main(["pipelines", "delete", "p", "--force"]) == 0
        assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == [("conduitslot",)]
    assert first.run().error is None
    assert first.documents("out.jsonl") == [{"i": 1}, {"i": 2}]
