"""A database that pgbench writes to, and its copy: equal at the end, whatever was killed meanwhile."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from lab.postgres_server import PostgresServer, installations
from lab.postgres_tables import drop_slots
from lab.support import Lab, destination, processor, queue
from pyspark.sql import SparkSession

from conduit_dagster.recovery.errors import TransientError

pytestmark = pytest.mark.slow
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
SECONDS = 8


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A separate one, because it is killed."""
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


def copying(lab: Lab, origin: str, copy: str) -> Lab:
    """With a pipeline that copies all tables of one database into those of another."""
    source = {"url": origin, "tables": "*", "logrepl.slotName": f"of_{origin.rpartition('/')[2]}"}
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "builtin:postgres", "settings": source},
            {"id": "out", "type": "destination", "plugin": "builtin:postgres", "settings": {"url": copy}},
        ],
        delivery={"strategy": "exactly-once", "batch-size": 30_000},
        **{"dead-letter-queue": queue()},
    )
    return lab


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


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


def contents(url: str, tables: Sequence[str] = TABLES) -> dict[str, tuple[object, ...]]:
    """Number of rows and checksum of each table."""
    query = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {} t"
    with psycopg.connect(url, autocommit=True) as connection:
        found = {table: connection.execute(query.format(table).encode()).fetchone() for table in tables}
    return {table: row for table, row in found.items() if row is not None}


def run_on(lab: Lab) -> bool:
    """One run that drains; False if it ended with an outage, to be repeated as recovery does."""
    result = lab.run()
    assert result.error is None or isinstance(result.error, TransientError), result.error
    return result.error is None


def test_the_copy_equals_the_original(
    lab: Lab, server: PostgresServer, databases: tuple[str, str], pgbench: Path
) -> None:
    origin, copy = databases
    copying(lab, origin, copy)
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


KINDS = """
    CREATE TABLE a (x int, y text, big text, j jsonb, n numeric, at timestamptz, PRIMARY KEY (x, y));
    CREATE TABLE b (id bigint PRIMARY KEY, tags text[], raw bytea, d date, f float8);
    ALTER TABLE a ALTER big SET STORAGE EXTERNAL
"""
CHANGES = (
    """INSERT INTO a SELECT {k}, 'k' || i, repeat('x', 3000), '{{"a": [1, null]}}', i / 3.0, now()
       FROM generate_series(1, 5) i ON CONFLICT DO NOTHING""",
    "UPDATE a SET n = n + 1 WHERE x = {k}",
    "UPDATE a SET big = 'short' WHERE x = {k} AND y = 'k2'",
    "UPDATE a SET x = x + 50 WHERE x = {k} AND NOT EXISTS (SELECT FROM a WHERE x = {k} + 50)",
    "DELETE FROM a WHERE x = {k} AND y <> 'k1'",
    "INSERT INTO b VALUES ({k}, array['a,\"b', NULL], '\\x00ff', '2024-02-29', 'NaN') ON CONFLICT DO NOTHING",
    "UPDATE b SET tags = NULL, f = 1e300 WHERE id = {k}",
    "UPDATE b SET id = -id WHERE id = {k} AND NOT EXISTS (SELECT FROM b WHERE id = -{k})",
    "DELETE FROM b WHERE id = {k}",
    "TRUNCATE b",
)


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_changes_of_every_kind_arrive(lab: Lab, postgres_server: PostgresServer, identity: str) -> None:
    """Seeded: statements alone and in transactions, and runs that meet them at any point."""
    origin, copy = postgres_server.create_database(), postgres_server.create_database()
    copying(lab, origin, copy)
    chance = random.Random(identity)
    with psycopg.connect(copy, autocommit=True) as connection:
        connection.execute(KINDS.encode())
    with psycopg.connect(origin, autocommit=True) as connection:
        connection.execute(KINDS.encode())
        for table in ("a", "b"):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}".encode())
        for _ in range(4):
            for _ in range(60):
                some = chance.choices(CHANGES, weights=(6, 4, 2, 2, 2, 6, 2, 2, 2, 1), k=chance.choice((1, 1, 4)))
                statements = "; ".join(one.format(k=chance.randint(1, 12)) for one in some)
                connection.execute(f"BEGIN; {statements}; COMMIT".encode())
            assert lab.run().error is None
            assert contents(copy, ("a", "b")) == contents(origin, ("a", "b"))
    assert lab.letters() == []
    drop_slots(origin)


def test_a_change_that_is_nacked_behind_other_processors_keeps_its_original(
    lab: Lab, postgres_server: PostgresServer
) -> None:
    """It is created again from what was read: the slot can't be read twice at a time."""
    origin = postgres_server.create_database()
    with psycopg.connect(origin, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one'), (2, 'two')")
        source = {"url": origin, "tables": "t", "logrepl.slotName": f"of_{origin.rpartition('/')[2]}"}
        reader = {"id": "in", "type": "source", "plugin": "builtin:postgres", "settings": source}
        more = {"delivery": {"strategy": "exactly-once"}, "dead-letter-queue": queue()}
        change = processor("change", "field.set", field=".Payload.After.v", value="changed")
        refuse = processor("refuse", "error", "after.id % 2 == 0", message="even")
        lab.pipeline(connectors=[reader, destination()], processors=[change, refuse], **more)
        assert lab.run().error is None
        connection.execute("INSERT INTO t VALUES (3, 'three'), (4, 'four'); UPDATE t SET v = 'TWO' WHERE id = 2")
        assert lab.run().error is None
    assert len(lab.letters()) == 3
    lab.pipeline(connectors=[reader, destination()], **more)
    assert lab.replay()["replayed"] == 3
    sent = lab.documents("out.jsonl")
    assert sent == [
        {"id": 1, "v": "changed"},
        {"id": 3, "v": "changed"},
        {"id": 2, "v": "two"},
        {"id": 4, "v": "four"},
        {"id": 2, "v": "TWO"},
    ]
    drop_slots(origin)
