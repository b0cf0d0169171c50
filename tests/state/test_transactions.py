"""A transaction waits for an unreachable store, and is applied once, whatever happens to the response."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from lab.postgres_proxy import Proxy
from lab.postgres_server import PostgresServer
from lab.waiting import at_once, wait_until
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.state.database import open_database
from conduit_dagster.state.lease import Lease, LeaseLost, Transactions, acquire
from conduit_dagster.state.tables import history, pipelines
from conduit_dagster.state.timed_connection import TimedConnection


@pytest.fixture
def lease(database: sa.Engine) -> Iterator[Lease]:
    owned = acquire(database, "p", 60.0)
    yield owned
    owned.release()


def note(connection: sa.Connection) -> int:
    """Add a row; return its number."""
    row = history.insert().values(pipeline="p", at_ns=0, event="x", detail="{}").returning(history.c.id)
    return connection.execute(row).scalar_one()


def notes(database: sa.Engine) -> list[int]:
    with database.connect() as connection:
        return list(connection.execute(sa.select(history.c.id).order_by(history.c.id)).scalars())


def test_work_and_values_are_committed_together(database: sa.Engine, lease: Lease) -> None:
    number = Transactions(database, lease).run(note, next_step=7)
    assert notes(database) == [number]
    with database.connect() as connection:
        assert connection.execute(sa.select(pipelines.c.next_step)).scalar_one() == 7


def test_what_fails_leaves_nothing(database: sa.Engine, lease: Lease) -> None:
    def work(connection: sa.Connection) -> None:
        note(connection)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Transactions(database, lease).run(work, next_step=7)
    assert notes(database) == []
    with database.connect() as connection:
        assert connection.execute(sa.select(pipelines.c.next_step)).scalar_one() == 1


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        (pipelines.insert().values(pipeline=None), IntegrityError),
        (sa.text("SELECT * FROM nothing_of_this_name"), (ProgrammingError, OperationalError)),
    ],
)
def test_a_mistake_is_not_repeated(database: sa.Engine, lease: Lease, statement: Any, kind: Any) -> None:
    calls = list[int]()

    def work(connection: sa.Connection) -> None:
        calls.append(note(connection))
        connection.execute(statement)

    with pytest.raises(kind):
        Transactions(database, lease).run(work)
    assert len(calls) == 1


def test_a_lost_lease_is_told_at_once(database: sa.Engine, lease: Lease) -> None:
    transactions = Transactions(database, lease, patience=60)
    with database.begin() as connection:
        connection.execute(sa.update(pipelines).values(epoch=pipelines.c.epoch + 1))
    with pytest.raises(LeaseLost):
        transactions.run(note)
    assert notes(database) == []


def test_transactions_of_several_threads_are_all_applied(database: sa.Engine, lease: Lease) -> None:
    transactions = Transactions(database, lease)
    found = at_once(lambda _: transactions.run(note), 8)
    assert notes(database) == sorted(found)
    assert len(found) == 8


# -- a store that is away -------------------------------------------------------------------------------------------


class Outage:
    """Make a store unreachable for everybody: the server is stopped, or the file is locked."""

    def __init__(self, url: str, server: PostgresServer | None) -> None:
        self._server = server
        self._file = sa.make_url(url).database or ""
        self._holder: sqlite3.Connection | None = None

    def begin(self) -> None:
        if self._server is not None:
            self._server.stop(immediate=True)
            return
        self._holder = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
        self._holder.execute("BEGIN EXCLUSIVE")

    def end(self) -> None:
        if self._server is not None and not self._server.is_running:
            self._server.start()
        elif self._holder is not None:
            self._holder.close()


@pytest.fixture
def outage(database: sa.Engine, database_url: str, request: pytest.FixtureRequest) -> Iterator[Outage]:
    on_server = database.dialect.name == "postgresql"
    outage = Outage(database_url, request.getfixturevalue("postgres_server") if on_server else None)
    yield outage
    outage.end()


def test_an_outage_is_waited_for(database: sa.Engine, lease: Lease, outage: Outage) -> None:
    """The store goes away, also in the middle of a transaction, and comes back: the work is done exactly once."""
    attempts = list[int]()
    asked = threading.Event()
    found = list[int]()

    def interrupted() -> bool:  # requested once an attempt has failed
        asked.set()
        return False

    def work(connection: sa.Connection) -> int:
        attempts.append(note(connection))
        return attempts[-1]

    transactions = Transactions(database, lease, patience=200, interrupted=interrupted)
    transactions.run(work)  # the connection in the pool is one that will be cut
    outage.begin()
    thread = threading.Thread(target=lambda: found.append(transactions.run(work)))
    thread.start()
    assert asked.wait(120)
    assert len(attempts) == 1
    outage.end()
    thread.join(120)
    assert notes(database) == [attempts[0], *found]
    assert len(found) == 1


def test_all_connections_of_a_process_in_use_are_an_outage(
    database: sa.Engine, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs holds up more pipelines of one process than it has connections: all of them wait for it."""
    monkeypatch.setattr(database.pool, "_timeout", 0.1)
    held = [database.connect() for _ in range(15)]
    with pytest.raises(TransientError, match="all connections of this process are in use") as caught:
        Transactions(database, lease, patience=0.3).run(note)
    assert caught.value.code == "state.unreachable"

    def interrupted() -> bool:  # requested once an attempt has failed
        held.pop().close()
        return False

    Transactions(database, lease, patience=60, interrupted=interrupted).run(note)
    assert len(notes(database)) == 1
    for connection in held:
        connection.close()


def test_an_outage_inside_a_transaction_is_no_half_of_it(postgres_url: str, postgres_server: PostgresServer) -> None:
    database = open_database(postgres_url)
    lease = acquire(database, "p", 60.0)
    attempts = list[int]()

    def work(connection: sa.Connection) -> int:
        attempts.append(note(connection))
        if len(attempts) == 1:
            postgres_server.stop(immediate=True)
            postgres_server.start()
        return note(connection)

    # the server is stopped and started within it
    Transactions(database, lease, patience=200).run(work)
    assert len(attempts) == 2
    assert len(notes(database)) == 2
    lease.release()
    database.dispose()


def test_patience_has_an_end(database: sa.Engine, lease: Lease, outage: Outage) -> None:
    outage.begin()
    began = time.monotonic()
    with pytest.raises(TransientError) as caught:
        Transactions(database, lease, patience=1.0).run(note)
    assert 1.0 <= time.monotonic() - began < 25  # the default would be thirty
    outage.end()
    error = caught.value
    assert (error.code, bool(error.fix)) == ("state.unreachable", True)
    assert str(database.url.password) not in f"{error.message} {error.place} {error.fix}"
    assert notes(database) == []


def test_who_waits_can_be_interrupted(database: sa.Engine, lease: Lease, outage: Outage) -> None:
    outage.begin()
    began = time.monotonic()
    with pytest.raises(TransientError, match="does not answer"):
        Transactions(database, lease, patience=200, interrupted=lambda: True).run(note)
    assert time.monotonic() - began < 100


def test_reading_waits_too(postgres_url: str, postgres_server: PostgresServer) -> None:
    """On SQLite a reader needs not wait."""
    database = open_database(postgres_url)
    lease = acquire(database, "p", 60.0)
    asked = threading.Event()
    transactions = Transactions(database, lease, 200, lambda: bool(asked.set()))
    transactions.run(note)
    postgres_server.stop()
    found = list[int]()
    count = sa.select(sa.func.count()).select_from(history)
    thread = threading.Thread(
        target=lambda: found.append(transactions.read(lambda connection: connection.execute(count).scalar_one()))
    )
    thread.start()
    assert asked.wait(120)
    postgres_server.start()
    thread.join(120)
    assert found == [1]
    lease.release()
    database.dispose()


# -- an answer that gets lost ---------------------------------------------------------------------------------------


@contextmanager
def through(proxy: Proxy, url: str) -> Iterator[tuple[sa.Engine, Lease]]:
    """The store as seen through the proxy, and a lease there."""
    database = open_database(sa.make_url(url).set(port=proxy.port).render_as_string(hide_password=False))
    lease = acquire(database, "p", 60.0)
    yield database, lease
    lease.release()
    database.dispose()
    proxy.close()


@pytest.mark.parametrize("lost", ["question", "answer"])
def test_a_commit_that_gets_lost_is_applied_once(postgres_url: str, postgres_server: PostgresServer, lost: str) -> None:
    """The connection is cut before the server has the COMMIT, or after it has committed, before we know."""
    proxy = Proxy(postgres_server.port)
    with through(proxy, postgres_url) as (database, lease):
        calls = list[int]()

        def work(connection: sa.Connection) -> int:
            calls.append(note(connection))
            return calls[-1]

        proxy.lose = lost
        assert Transactions(database, lease).run(work) == calls[-1]
        assert proxy.cut == 1
        assert len(calls) == (2 if lost == "question" else 1)
        assert notes(database) == [calls[-1]]


def test_a_connection_that_falls_silent_does_not_use_up_the_patience(
    postgres_url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may keep a connection open whose server is gone, while a new one would be answered at once."""
    proxy, over = Proxy(postgres_server.port), threading.Event()
    monkeypatch.setattr(TimedConnection, "seconds", 2.0)
    # the server ends what nobody goes on with
    with through(proxy, f"{postgres_url}?options=-cidle_in_transaction_session_timeout%3D300") as (database, lease):
        proxy.lose, proxy.until = "silence", over.wait
        Transactions(database, lease, patience=1.9).run(note)
        assert proxy.cut == 1
        assert len(notes(database)) == 1
        over.set()


def test_a_commit_that_sqlite_made_and_called_a_failure_is_applied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk reports an error after the bytes are written."""
    database = open_database(f"sqlite:///{tmp_path}/state.db")
    lease = acquire(database, "p", 60.0)
    commit, failures = database.dialect.do_commit, list[str]()

    def fails_once(connection: Any) -> None:
        commit(connection)
        if not failures:
            failures.append("x")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    monkeypatch.setattr(database.dialect, "do_commit", fails_once)
    number = Transactions(database, lease).run(note)
    assert failures
    assert notes(database) == [number]
    lease.release()
    database.dispose()


def test_between_a_lost_answer_and_its_repetition_nothing_else_of_ours_runs(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    """Many threads, each of whose commits may be lost: every one is applied once."""
    proxy = Proxy(postgres_server.port)
    with through(proxy, postgres_url) as (database, lease):
        transactions = Transactions(database, lease)

        def several(_: int) -> list[int]:
            found = list[int]()
            for number in range(5):
                proxy.lose = "answer" if number % 2 else "question"
                found.append(transactions.run(note))
            return found

        found = [number for some in at_once(several, 4) for number in some]
        assert proxy.cut >= 5
        assert notes(database) == sorted(found)
        assert len(found) == 20


def test_a_commit_that_is_still_under_way_is_waited_for(postgres_url: str, postgres_server: PostgresServer) -> None:
    """We know nothing of it any more, the server commits it after the repetition has begun."""
    proxy = Proxy(postgres_server.port)
    with through(proxy, postgres_url) as (database, lease), psycopg.connect(postgres_url, autocommit=True) as watcher:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        proxy.until = lambda: wait_until(lambda: watcher.execute(waiting).fetchone(), "the repetition waits")
        proxy.lose = "late"
        number = Transactions(database, lease).run(note)
        assert proxy.cut == 1
        assert notes(database) == [number]
