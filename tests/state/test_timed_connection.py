"""A state store on a frozen server: whatever waits for it ends, as for a server that is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from lab.postgres_server import PostgresServer, installations
from sqlalchemy.exc import OperationalError

from conduit_dagster.cli.verb import unforeseen
from conduit_dagster.state.database import is_outage, open_database
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
