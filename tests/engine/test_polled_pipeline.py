"""A pipeline that polls a table and keeps running."""

from __future__ import annotations

import psycopg
import pytest
from lab.postgres_server import PostgresServer
from lab.recovery_lab import in_background
from lab.support import Lab, destination, queue
from lab.waiting import wait_until

from conduit_dagster.engine.stop import StopFlag

pytestmark = pytest.mark.slow

_WAITS = """
    SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%virtualxid = ANY%'
"""
"""A poll that has seen a row, and waits for open transactions."""


@pytest.mark.parametrize("log", ["positions", "records"])
def test_polls_go_on_after_one_whose_rows_are_gone(lab: Lab, postgres_server: PostgresServer, log: str) -> None:
    """No step follows a range without records, so its snapshot would stay open."""
    url = postgres_server.create_database()
    settings = {"url": url, "tables": "a", "cdcMode": "long_polling"}
    lab.pipeline(
        connectors=[{"id": "in", "type": "source", "plugin": "builtin:postgres", "settings": settings}, destination()],
        delivery={"strategy": "exactly-once", "log": log},
        **{"dead-letter-queue": queue(0)},
    )
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
        flag = StopFlag()
        thread, results = in_background(lambda: lab.run(drain=False, stop=flag))
        try:
            wait_until(lambda: len(lab.lines("out.jsonl")) == 1, "the first row arrives")
            with psycopg.connect(url) as late:
                late.execute("SELECT FROM a")
                database.execute("INSERT INTO a VALUES (2)")
                wait_until(lambda: database.execute(_WAITS).fetchone() is not None, "a poll waits")
                database.execute("DELETE FROM a WHERE id = 2")
            wait_until(lambda: database.execute(_WAITS).fetchone() is None, "the poll has read nothing")
            database.execute("INSERT INTO a VALUES (3)")
            wait_until(lambda: len(lab.lines("out.jsonl")) == 2, "a later row arrives")
        finally:
            flag.request()
            thread.join(120)
    assert [one.status for one in results] == ["stopped"]
    assert lab.documents("out.jsonl") == [{"id": 1}, {"id": 3}]
