"""PostgreSQL and Delta: mutants of the hash in the transaction, and of ending a frozen owner's connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from engine.mutants import mutants_of_destinations as without
from engine.mutants.bench import Bench
from engine.mutants.conftest import Caught, Scenario
from engine.mutants.verdicts import hold, sound
from lab.delta_rows import column
from lab.postgres_server import PostgresServer

pytestmark = [pytest.mark.slow]
Read = Callable[[], list[int]]


def postgres(server: PostgresServer) -> tuple[dict[str, Any], Read]:
    """A destination on its own database, and how its rows are read."""
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n bigserial PRIMARY KEY, i bigint)")
    settings = {"url": url, "table": "t", "lock-timeout": "1s"}

    def read() -> list[int]:
        with psycopg.connect(url) as connection:
            return [row[0] for row in connection.execute("SELECT i FROM t ORDER BY n")]

    return {"id": "out", "type": "destination", "plugin": "postgres", "settings": settings}, read


def delta(bench: Bench) -> tuple[dict[str, Any], Read]:
    """A table, and how its rows are read."""
    settings = {"path": "./table", "columns": "i:long"}

    def read() -> list[int]:
        return column(bench.root / "table", "i")

    return {"id": "out", "type": "destination", "plugin": "delta", "settings": settings}, read


def published_unmarked(bench: Bench, out: dict[str, Any], read: Read) -> None:
    """A crash between publishing and its mark."""
    bench.build(out)
    bench.crashes("after-publish")
    sound(bench.take())
    hold(read(), [1, 2, 3, 4])


def in_postgres(server: PostgresServer, then: Callable[[Bench, dict[str, Any], Read], None]) -> Scenario:
    return lambda bench: then(bench, *postgres(server))


def test_without_hash_in_postgres(caught: Caught, postgres_server: PostgresServer) -> None:
    caught(in_postgres(postgres_server, published_unmarked), without.postgres_hash, "doubled")


def test_without_transaction_id_in_delta(caught: Caught) -> None:
    caught(lambda bench: published_unmarked(bench, *delta(bench)), without.delta_hash, "doubled")


def frozen_in_a_transaction(bench: Bench, out: dict[str, Any], read: Read) -> None:
    """The old owner stands in the middle of its transaction; nothing waits for it."""
    bench.build(out)
    bench.overtaken("mid-publish")
    hold(read(), [1, 2, 3, 4])


def test_without_ending_older_connections(caught: Caught, postgres_server: PostgresServer) -> None:
    """Whatever waits for the frozen one ends at its lock-timeout, a minute by default."""
    caught(in_postgres(postgres_server, frozen_in_a_transaction), without.kill, "stuck")
