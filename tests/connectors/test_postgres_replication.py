"""A database that pgbench writes to, and its copy: equal at the end, whatever was killed meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from lab.postgres_server import PostgresServer, installations
from lab.postgres_tables import drop_slots
from lab.support import Lab, queue
from pyspark.sql import SparkSession

from conduit_dagster.recovery.errors import TransientError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
SECONDS = 8


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """Of its own, for it is killed."""
    with closing(PostgresServer(installations()[0])) as made:
        yield made


@pytest.fixture
def pgbench() -> Path:
    found = installations()[0] / "pgbench"
    if not found.exists():
        pytest.skip("this PostgreSQL comes without pgbench")
    return found


@pytest.fixture
def databases(server: PostgresServer, pgbench: Path) -> tuple[str, str]:
    """Both with pgbench's tables, the second one's empty."""
    origin, copy = server.create_database(), server.create_database()
    for url in (origin, copy):
        subprocess.run([pgbench, "-i", "-q", "-s", "1", url], check=True, capture_output=True)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER TABLE pgbench_history ADD id bigserial PRIMARY KEY")
            if url == copy:
                connection.execute(f"TRUNCATE {', '.join(TABLES)}".encode())
    return origin, copy


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession, databases: tuple[str, str]) -> Lab:
    origin, copy = databases
    lab = Lab(tmp_path, spark)
    source = {"url": origin, "tables": "*", "logrepl.slotName": "bench", "logrepl.publicationName": "bench"}
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "builtin:postgres", "settings": source},
            {"id": "out", "type": "destination", "plugin": "builtin:postgres", "settings": {"url": copy}},
        ],
        delivery={"strategy": "exactly-once", "batch-size": 30_000},
        **{"dead-letter-queue": queue()},
    )
    return lab


@contextmanager
def load(pgbench: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Transactions of four clients, for some seconds."""
    command = [pgbench, "-n", "-c", "4", "-T", str(SECONDS), url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def contents(url: str) -> dict[str, tuple[object, ...]]:
    """Number of rows and checksum of each table."""
    query = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {} t"
    with psycopg.connect(url, autocommit=True) as connection:
        found = {table: connection.execute(query.format(table).encode()).fetchone() for table in TABLES}
    return {table: row for table, row in found.items() if row is not None}


def run_on(lab: Lab) -> bool:
    """One run that drains; False where it ended with an outage, to be repeated as recovery does."""
    result = lab.run()
    assert result.error is None or isinstance(result.error, TransientError), result.error
    return result.error is None


def test_the_copy_equals_the_original(
    lab: Lab, server: PostgresServer, databases: tuple[str, str], pgbench: Path
) -> None:
    origin, copy = databases
    with load(pgbench, origin) as bench:
        # the copy begins amid the load, and the changes follow
        while bench.poll() is None:
            assert run_on(lab)
    with load(pgbench, origin):
        assert run_on(lab)
        server.stop(immediate=True)
        assert not run_on(lab)
        server.start()
    while not run_on(lab):
        pass
    assert contents(copy) == contents(origin)
    assert contents(copy)["pgbench_history"][0] != 0
    assert lab.letters() == []
    drop_slots(origin)
