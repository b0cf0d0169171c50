"""A pipeline's target goes away during a run and comes back: nothing is lost, nothing is duplicated."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from lab.postgres_server import PostgresServer
from lab.recovery_lab import events, in_background, keeper, names
from lab.support import Lab, queue
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.policy import Policy

pytestmark = pytest.mark.slow
POLICY = Policy(min_delay=0.2, max_delay=1.0, window=0.5)


@pytest.fixture
def lab(tmp_path: Any, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def test_postgres_stops_and_starts_under_a_pipeline(lab: Lab, postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()

    def ids() -> list[int]:
        with psycopg.connect(url) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM t ORDER BY id")]

    with psycopg.connect(url) as connection:
        # without a key: a duplicate record would be a duplicate row
        connection.execute("CREATE TABLE t (id int)")
    lab.pipeline(
        trigger="continuous",
        delivery={"strategy": "exactly-once", "batch-size": 20},
        connectors=[
            {"id": "in", "type": "source", "plugin": "chaos", "settings": {"records": 1_000_000, "rate": 50}},
            {"id": "out", "type": "destination", "plugin": "postgres", "settings": {"url": url, "table": "t"}},
        ],
        **{"dead-letter-queue": queue()},
    )
    flag = StopFlag()
    with keeper(lab, POLICY, flag, drain=False) as one:
        thread, results = in_background(lambda: one.run(lambda: lab._spark))  # type: ignore[arg-type, return-value]
        try:
            wait_until(lambda: len(ids()) >= 40, "records arrive")
            postgres_server.stop()
            try:
                wait_until(lambda: names(lab).count("waiting") >= 3, "it was restarted while the server was away")
            finally:
                postgres_server.start()
            before = len(ids())
            wait_until(lambda: "recovered" in names(lab), "it recovered")
            wait_until(lambda: len(ids()) >= before + 40, "more records arrive")
        finally:
            flag.request()
            thread.join(120)
    assert [(result.status, result.error) for result in results] == [("stopped", None)]
    found = ids()
    assert found == list(range(1, len(found) + 1))
    failed = [detail for event, detail in events(lab) if event == "failed"]
    assert {one["node"] for one in failed} == {"p:out"}
    assert {one["code"] for one in failed} <= {"postgres.unreachable", "postgres.server"}
    assert not any(one["fatal"] for one in failed)
