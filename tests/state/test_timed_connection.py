"""A state store on a server of which something is missing: it is frozen, or its standby is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
import sqlalchemy as sa
from lab.postgres_server import PostgresServer, installations
from lab.waiting import wait_until
from sqlalchemy.exc import OperationalError

from conduit_dagster.cli.verb import unforeseen
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.state.database import is_outage, open_database
from conduit_dagster.state.lease import Transactions, acquire
from conduit_dagster.state.timed_connection import TimedConnection

pytestmark = pytest.mark.slow
ONE = sa.text("SELECT 1")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A separate one: others would wait for it."""
    if not installations():
        pytest.skip("no PostgreSQL: install Debian's postgresql, or pgserver (Python 3.12 or older)")
    server = PostgresServer(installations()[0])
    yield server
    server.close()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[sa.Engine]:
    database = open_database(server.create_database())
    yield database
    database.dispose()


@pytest.mark.parametrize("ends", [False, True])
def test_neither_a_statement_nor_the_end_of_a_transaction_waits_for_ever(
    server: PostgresServer, database: sa.Engine, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    connection = database.connect()
    connection.execute(ONE)
    with server.frozen(), monkeypatch.context() as patch:
        patch.setattr(TimedConnection, "seconds", 0.5)
        begun = time.monotonic()
        with pytest.raises(OperationalError, match=r"not answered for 0\.5 s") as failed:
            connection.commit() if ends else connection.execute(ONE)
        # the default would be half a minute
        assert time.monotonic() - begun < 20
        assert is_outage(failed.value)
        # only a commit may wait for a standby
        assert ("synchronous_standby_names" in str(failed.value)) == ends
        # output of a verb that runs meanwhile
        assert unforeseen(failed.value).code == "state.unreachable"
        connection.close()
    with database.connect() as again:
        assert again.execute(ONE).scalar_one() == 1


def test_a_statement_that_is_slow_but_for_less_is_answered(
    database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedConnection, "seconds", 15.0)
    with database.connect() as connection:
        assert connection.execute(sa.text("SELECT 1 FROM pg_sleep(1)")).scalar_one() == 1


@contextmanager
def without_standby(server: PostgresServer) -> Iterator[psycopg.Connection]:
    """Let commits wait for a standby that is not there. Yield a connection of an operator."""
    with psycopg.connect(server.url(), autocommit=True) as operator:
        operator.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
        try:
            operator.execute("SELECT pg_reload_conf()")
            wait_until(lambda: operator.execute("SHOW synchronous_standby_names").fetchone() == ("absent",), "it waits")
            yield operator
        finally:
            operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            operator.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("level", ["notice", "error"])
def test_a_transaction_whose_wait_for_a_standby_is_cancelled_is_not_done(server: PostgresServer, level: str) -> None:
    """PostgreSQL then reports success, with a warning, which a user or a database may have switched off."""
    database = open_database(f"{server.create_database()}?options=-c%20client_min_messages%3D{level}")
    lease, cancel = acquire(database, "p", 60.0), "SELECT pg_cancel_backend(%s)"
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'"
    tried: list[int] = []

    def work(connection: sa.Connection) -> None:
        tried.append(connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())

    with ThreadPoolExecutor(1) as pool:
        with without_standby(server) as operator:
            done = pool.submit(Transactions(database, lease, patience=0).run, work)
            wait_until(lambda: tried and (tried[0],) in operator.execute(waiting).fetchall(), "it waits")
            operator.execute(cancel, tried)
            with pytest.raises(TransientError, match="may lack") as caught:
                done.result(60)
            assert caught.value.code == "state.unreachable" and "synchronous_standby_names" in str(caught.value.fix)
            done = pool.submit(Transactions(database, lease).run, work)
            wait_until(lambda: len(tried) > 1 and (tried[1],) in operator.execute(waiting).fetchall(), "it waits")
            operator.execute(cancel, tried[1:])
            # the transaction is there: what is asked again waits for the standby as well
            wait_until(lambda: operator.execute(waiting).fetchall(), "it waits again", over=done.done)
        done.result(60)
    assert len(tried) == 2
    lease.release()
    database.dispose()
