"""Copies and changes together, whatever happens while tables are copied: every row once, every change once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.postgres_reading import PostgresReading, records_of, travelled
from lab.postgres_server import PostgresServer

from conduit_dagster.record import Record
from conduit_dagster.sdk import Limit

pytestmark = pytest.mark.slow

IDS = st.integers(1, 12)
CHANGES = st.one_of(
    st.tuples(st.just("insert"), IDS),
    st.tuples(st.just("update"), IDS),
    st.tuples(st.just("delete"), IDS),
    st.tuples(st.just("rekey"), IDS, IDS),
)
EVENTS = st.one_of(
    CHANGES,
    st.tuples(st.just("begun"), CHANGES),
    st.just(("commit",)),
    st.just(("rollback",)),
    st.tuples(st.just("step"), st.integers(1, 5)),
    st.just(("restart",)),
)


class Replica:
    """A table made from records alone. A repeated or late change is an error."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}

    def apply(self, record: Record) -> None:
        """Apply a record."""
        after: Any = record.after
        key, before = _id(record.key), _id(record.before)
        if record.operation in ("snapshot", "create"):
            assert key not in self.rows, f"twice: {record}"
            self.rows[key] = after["v"]
        elif record.operation == "delete":
            assert key in self.rows, f"deleted twice, or never seen: {record}"
            del self.rows[key]
        else:
            old = key if before is None else before
            assert old in self.rows, f"a change of what was never seen: {record}"
            del self.rows[old]
            assert key not in self.rows
            self.rows[key] = after["v"]


def _id(data: Any) -> Any:
    return None if data is None else data["id"]


class History:
    """A table, a source that is restarted at any time, and transactions that are open meanwhile."""

    def __init__(self, lab: PostgresReading, kind: str) -> None:
        self.lab, self.kind = lab, kind
        lab.end_sources()
        lab.execute(f"DROP TABLE IF EXISTS h; CREATE TABLE h (id {kind} PRIMARY KEY, v int NOT NULL DEFAULT 0)")
        lab.execute("INSERT INTO h SELECT i FROM generate_series(1, 12, 2) i")
        self.source = lab.source(tables="h")
        self.position: Any = self.source.initial()
        self.replica = Replica()
        self.open: psycopg.Connection[Any] | None = None

    def run(self, event: Any) -> None:
        """Take an event."""
        kind, *rest = event
        if kind == "step":
            self.step(rest[0])
        elif kind == "restart":
            self.source.close()
            self.source = self.lab.source(tables="h")
        elif kind in ("commit", "rollback"):
            self.end(kind)
        elif kind == "begun":
            # there is no slot before the first look: creating one waits for open transactions
            if self.position:
                self.begun(rest[0])
        else:
            with psycopg.connect(self.lab.url, autocommit=True) as connection:
                self.change(connection, event)

    def begun(self, change: Any) -> None:
        """Make a change in the transaction that stays open."""
        if self.open is None:
            self.open = psycopg.connect(self.lab.url)
        try:
            self.open.execute("SET LOCAL lock_timeout = '50ms'")
            self.change(self.open, change)
        except psycopg.Error:
            self.end("rollback")

    def end(self, how: str) -> None:
        """End the open transaction."""
        if self.open is not None:
            self.open.commit() if how == "commit" else self.open.rollback()
            self.open.close()
            self.open = None

    @staticmethod
    def change(connection: psycopg.Connection[Any], change: Any) -> None:
        """Make a change; one that meets a lock or another row is not made."""
        statement = {
            "insert": "INSERT INTO h VALUES (%s, 1) ON CONFLICT DO NOTHING",
            "update": "UPDATE h SET v = v + 1 WHERE id = %s",
            "delete": "DELETE FROM h WHERE id = %s",
            "rekey": "UPDATE h SET id = %s, v = v + 10 WHERE id = %s AND NOT EXISTS (SELECT FROM h WHERE id = %s)",
        }[change[0]]
        values = (change[2], change[1], change[2]) if change[0] == "rekey" else change[1:]
        with _patient(connection):
            connection.execute(statement, values)

    def step(self, records: int) -> None:
        """Read the next step."""
        further = self.source.latest(travelled(self.position), Limit(records, 10**9))
        if further != self.position:
            for record in records_of(self.source, self.position, further):
                self.replica.apply(record)
            self.position = travelled(further)
            self.source.ack(self.position, 1)

    def drain(self) -> None:
        """Read everything."""
        self.end("commit")
        before: Any = None
        while before != self.position:
            before = self.position
            self.step(100)


@contextmanager
def _patient(connection: psycopg.Connection[Any]) -> Iterator[None]:
    if not connection.autocommit:
        yield
        return
    connection.execute("SET lock_timeout = '50ms'")
    try:
        yield
    except psycopg.Error:
        pass


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database()


@pytest.mark.parametrize("kind", ["bigint", 'text COLLATE "C"'])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENTS, min_size=3, max_size=25))
def test_every_row_and_every_change_once(kind: str, url: str, tmp_path: Path, events: list[Any]) -> None:
    lab = PostgresReading(url, tmp_path)
    with closing(lab):
        history = History(lab, kind)
        try:
            for event in events:
                history.run(event)
            history.drain()
            rows = dict(lab.execute("SELECT id, v FROM h"))
            assert history.replica.rows == rows
        finally:
            history.end("rollback")
