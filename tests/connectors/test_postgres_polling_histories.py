"""Any history of transactions beside the source's polls: no row is missed, and none comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lab.postgres_reading import PostgresReading, drained, records_of, travelled
from lab.postgres_server import PostgresServer
from psycopg.pq import TransactionStatus

from conduit_dagster.record import Record
from conduit_dagster.sdk import Limit

TIMED = "CREATE TABLE a (id bigint PRIMARY KEY, v int, updated_at timestamptz NOT NULL DEFAULT now())"
POLLED: dict[str, Any] = {"cdcMode": "long_polling"}

EVENTS = st.lists(
    st.one_of(
        st.just(("added",)),
        st.tuples(st.just("insert"), st.integers(0, 2)),
        st.tuples(st.just("take"), st.integers(0, 2)),
        st.tuples(st.just("update"), st.integers(0, 2), st.integers(1, 12)),
        st.tuples(st.just("commit"), st.integers(0, 2)),
        st.tuples(st.just("prepare"), st.integers(0, 2)),
        st.tuples(st.just("rollback"), st.integers(0, 2)),
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.just(("restart",)),
    ),
    max_size=40,
)


class Writers:
    """Three sessions, each with an open transaction, and with numbers taken and not yet used."""

    def __init__(self, url: str, exits: ExitStack) -> None:
        self._sessions = [exits.enter_context(psycopg.connect(url)) for _ in range(3)]
        self._at_once = exits.enter_context(psycopg.connect(url, autocommit=True))
        self._taken: list[list[int]] = [[], [], []]
        self._prepared: set[int] = set()

    def take(self, who: int) -> None:
        """Take a number, as an application that knows its keys before it inserts."""
        row = self._sessions[who].execute("SELECT nextval('numbers')").fetchone()
        assert row is not None
        self._taken[who].append(int(row[0]))

    def added(self) -> None:
        """Insert a row that is committed at once."""
        self._at_once.execute("INSERT INTO a VALUES (nextval('numbers'), 0)")

    def insert(self, who: int) -> None:
        """Insert a row under the number taken first."""
        if not self._taken[who]:
            self.take(who)
        self._sessions[who].execute("INSERT INTO a VALUES (%s, 0)", (self._taken[who].pop(0),))

    def update(self, who: int, key: int) -> None:
        """Change a row unless another session holds it."""
        statement = """
            UPDATE a SET v = v + 1, updated_at = now()
            WHERE id IN (SELECT id FROM a WHERE id = %s FOR UPDATE SKIP LOCKED)
        """
        self._sessions[who].execute(statement, (key,))

    def commit(self, who: int) -> None:
        """Commit; unused numbers are given up."""
        self._sessions[who].commit()
        self._settle(who)
        self._taken[who].clear()

    def prepare(self, who: int) -> None:
        """Commit in two phases, the second of them at the end, or when the session commits next."""
        self._settle(who)
        if self._sessions[who].info.transaction_status != TransactionStatus.IDLE:
            self._sessions[who].execute(f"PREPARE TRANSACTION 'late{who}'".encode())
            self._sessions[who].commit()
            self._prepared.add(who)
        self._taken[who].clear()

    def _settle(self, who: int) -> None:
        if who in self._prepared:
            self._at_once.execute(f"COMMIT PREPARED 'late{who}'".encode())
            self._prepared.discard(who)

    def rollback(self, who: int) -> None:
        """Roll back."""
        self._sessions[who].rollback()
        self._taken[who].clear()


@pytest.fixture(scope="module")
def history(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresReading]:
    """A database for all examples."""
    root: Path = tmp_path_factory.mktemp("polling")
    made = PostgresReading(postgres_server.create_database(), root)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("column", ["", "updated_at"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(events=EVENTS)
@example(events=[("added",), ("step", 4), ("take", 0), ("added",), ("step", 4), ("insert", 0), ("commit", 0)])
def test_every_row_comes_once_in_every_history(history: PostgresReading, column: str, events: list[Any]) -> None:
    """By key: each committed row once; by time: each row in its last state."""
    history.end_sources()
    history.execute(f"DROP TABLE IF EXISTS a; DROP SEQUENCE IF EXISTS numbers; {TIMED}; CREATE SEQUENCE numbers")
    chosen = {**POLLED, "polling.column": column}
    source = history.source(**chosen)
    position, found = source.initial(), list[Record]()
    with ExitStack() as exits:
        writers = Writers(history.url, exits)
        for name, *values in events:
            if name == "step":
                end = travelled(source.latest(position, Limit(values[0], 10**9)))
                found += records_of(source, position, end) if end != position else []
                position = end
                source.ack(position, 1)
            elif name == "restart":
                source = history.source(**chosen)
            elif name != "update" or column:
                getattr(writers, name)(*values)
        for who in range(3):
            writers.commit(who)
    # a poll that had begun is read to its end first
    rest, position = drained(source, position)
    last, _ = drained(history.source(**chosen), position)
    found += rest + last
    rows = dict(history.execute("SELECT id, v FROM a"))
    told = {one.after["id"]: one.after["v"] for one in found if isinstance(one.after, dict)}
    assert told == rows
    assert len({one.position for one in found}) == len(found)
    if not column:
        assert len(found) == len(rows)
