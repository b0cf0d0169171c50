"""Failover and restore: a server on another timeline, with or without what was read from the old one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from lab.postgres_reading import PostgresReading, drained, records_of, travelled
from lab.postgres_server import PostgresServer, installations
from lab.server_process import free_port
from lab.waiting import wait_until

from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Limit, Position

pytestmark = pytest.mark.slow
FAR = Limit(10**6, 10**9)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A separate one, because it is stopped and changed."""
    with closing(PostgresServer(installations()[0])) as made:
        yield made


@pytest.fixture
def reading(server: PostgresServer, tmp_path: Path) -> Iterator[PostgresReading]:
    with closing(PostgresReading(server.create_database(), tmp_path)) as made:
        made.execute("CREATE TABLE a (id bigint PRIMARY KEY)")
        yield made


def read(reading: PostgresReading, start: Position) -> tuple[list[object], Position]:
    """Read everything from a position on, in a run of its own."""
    source = reading.source()
    try:
        records, end = drained(source, start)
        return [record.key and record.key["id"] for record in records], travelled(end)  # type: ignore[index, call-overload]
    finally:
        source.close()


def promote(server: PostgresServer, backup: Path | None = None) -> None:
    """Restart the server as a standby, from a backup if given, and promote it."""
    server.stop(immediate=False)
    if backup is not None:
        subprocess.run(["rm", "-rf", server.data], check=True)
        backup.rename(server.data)
    subprocess.run(["cp", "-p", server.data / "PG_VERSION", server.data / "standby.signal"], check=True)
    server.start()
    with closing(PostgresReading(server.url(), server.data)) as admin:
        assert admin.execute("SELECT pg_promote()") == [(True,)]


def copied(server: PostgresServer) -> Path:
    """Return a copy of the server's data as they are now."""
    server.stop(immediate=False)
    backup = server.data.with_name("backup")
    subprocess.run(["cp", "-a", server.data, backup], check=True)
    server.start()
    return backup


def test_a_promoted_standby_with_all_that_was_read_goes_on(server: PostgresServer, reading: PostgresReading) -> None:
    _, position = read(reading, {})
    reading.execute("INSERT INTO a VALUES (1)")
    first, position = read(reading, position)
    for number in (2, 3):
        promote(server)
        reading.execute(f"INSERT INTO a VALUES ({number})")
        more, position = read(reading, position)
        first += more
    assert first == [1, 2, 3] and position["timeline"] == 3


@pytest.mark.parametrize("look", ["read", "ack", "verify"])
def test_a_promoted_standby_without_what_was_read_is_named(
    server: PostgresServer, reading: PostgresReading, look: str
) -> None:
    """Also once its WAL is longer than that of the old primary: new changes lie before the position."""
    _, position = read(reading, {})
    backup = copied(server)
    reading.execute("INSERT INTO a VALUES (1)")
    _, position = read(reading, position)
    end = reading.wal()
    promote(server, backup)
    reading.execute("INSERT INTO a VALUES (2)")
    while reading.wal() <= end:
        reading.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 9000))")
    confirmed, source = reading.confirmed(), reading.source()
    with pytest.raises(FatalError, match="timeline 2") as caught:
        if look == "ack":
            source.ack(position, 1)
        elif look == "verify":
            source.verify(position, position)
        else:
            source.latest(position, FAR)
    assert caught.value.code == "postgres.went_back" and "rewind" in str(caught.value.fix)
    source.close()
    assert reading.confirmed() == confirmed


def test_a_planned_range_beyond_the_wal_of_a_server_that_was_set_back_is_not_awaited(
    server: PostgresServer, reading: PostgresReading
) -> None:
    """As a step that was planned before a failover is read again: the server answers, and the end never came."""
    _, position = read(reading, {})
    backup = copied(server)
    reading.execute("INSERT INTO a SELECT generate_series(1, 20000)")
    source = reading.source()
    end = travelled(source.latest(position, FAR))
    source.close()
    promote(server, backup)
    with pytest.raises(FatalError, match="before our position") as caught:
        records_of(reading.source(), position, end)
    assert caught.value.code == "postgres.went_back" and "rewind" in str(caught.value.fix)


@contextmanager
def standby_of(server: PostgresServer, url: str, *more: str) -> Iterator[str]:
    """Run a standby with more settings. Yield the database's URL."""
    parts, port = urlsplit(server.url()), free_port()
    folder, own = server.data.with_name("standby"), {"PGPASSWORD": str(parts.password)}
    programs, address = installations()[0], f"host=127.0.0.1 port={server.port} user={parts.username} dbname=postgres"
    with closing(PostgresReading(server.url(), folder)) as admin:
        admin.execute("SELECT pg_create_physical_replication_slot('standby')")
    made = [programs / "pg_basebackup", "-w", "-d", address, "-D", folder, "-X", "stream", "-R", "-c", "fast"]
    subprocess.run(made, check=True, env={**os.environ, **own}, **server.runs_as)
    settings = [f"port={port}", *server.settings, "hot_standby_feedback=on", *more]
    settings += ["primary_slot_name=standby", f"primary_conninfo={address} password={parts.password}"]
    words = [part for setting in settings for part in ("-c", setting)]
    process = subprocess.Popen([programs / "postgres", "-D", folder, *words], **server.runs_as)
    there = url.replace(f":{server.port}/", f":{port}/")
    try:
        wait_until(lambda: _answer(there, "SELECT 1"), "the standby answers")
        yield there
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(60)


def _answer(url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    with suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode(), values).fetchall()
    return []


def test_a_standby_that_keeps_the_slot_in_step_is_waited_for(server: PostgresServer, reading: PostgresReading) -> None:
    """Before it is promoted; nothing says to drop the slot. Afterwards the source goes on there."""
    if int(reading.execute("SHOW server_version_num")[0][0]) < 170_000:
        pytest.skip("slots are kept in step from version 17 on")
    reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE a; INSERT INTO a VALUES (1)")
    reading.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)", reading.name)
    with standby_of(server, reading.url, "sync_replication_slots=on") as url:
        synced = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"
        # the standby takes a slot that is behind its own beginning only once it has moved on
        moved = "SELECT pg_log_standby_snapshot(), pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())"
        slot = reading.name
        wait_until(lambda: _answer(reading.url, moved, slot) and _answer(url, synced, slot), "the standby has the slot")
        _, position = read(reading, {})
        reading.execute("INSERT INTO a VALUES (2)")
        there = PostgresReading(url, reading.root)
        there.name = reading.name
        wait_until(lambda: there.execute("SELECT 1 FROM a WHERE id = 2"), "the standby has the row")
        with pytest.raises(TransientError, match="in step") as caught:
            read(there, position)
        assert caught.value.code == "postgres.slot_active" and "promoted" in str(caught.value.fix)
        server.stop()
        there.execute("SELECT pg_promote()")
        assert read(there, position)[0] == [2]
        there.end_sources()
    server.start()


def test_changes_that_a_standby_lacks_are_waited_for_in_time(server: PostgresServer, reading: PostgresReading) -> None:
    """The server holds up whoever reads a slot with ``failover``, or moves it: planning, acks and lag hung."""
    if int(reading.execute("SHOW server_version_num")[0][0]) < 170_000:
        pytest.skip("slots wait for standbys from version 17 on")
    reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE a")
    reading.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)", reading.name)
    _, position = read(reading, {})
    reading.execute("SELECT pg_create_physical_replication_slot('far')")
    reading.execute("ALTER SYSTEM SET synchronized_standby_slots = far")
    reading.execute("SELECT pg_reload_conf()")
    wait_until(lambda: reading.execute("SHOW synchronized_standby_slots") == [("far",)], "the server waits for it")
    source = reading.source(**{"lock-timeout": "0.5s"})
    source.latest(position, FAR)
    reading.execute("INSERT INTO a VALUES (1)")
    with pytest.raises(TransientError, match="waits for standbys") as caught:
        source.latest(position, FAR, source.horizon())
    assert caught.value.code == "postgres.busy" and "synchronized_standby_slots" in str(caught.value.fix)
    # a run that goes on waits without a step; what it owes is shown
    assert source.latest(position, FAR) == position
    assert source.lag(position) and source.leftovers(position)[0].loses
    source.ack(position, 1)
    reading.execute("ALTER SYSTEM RESET synchronized_standby_slots")
    reading.execute("SELECT pg_reload_conf()")
    wait_until(lambda: source.latest(position, FAR) != position, "it is read on")
    assert read(reading, position)[0] == [1]


def test_a_standby_can_be_read_once_its_primary_has_told_what_is_open(
    server: PostgresServer, reading: PostgresReading
) -> None:
    """From PostgreSQL 16 on; a quiet primary tells nothing, without an end."""
    version = int(reading.execute("SHOW server_version_num")[0][0])
    reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE a; INSERT INTO a VALUES (1)")
    with standby_of(server, reading.url) as url, closing(PostgresReading(url, reading.root)) as there:
        there.name = reading.name
        wait_until(lambda: _answer(url, "SELECT FROM a WHERE id = 1"), "the standby has the row")
        source = there.source(**{"lock-timeout": "1s"})
        if version < 160_000:
            for asked in (source.check, lambda: source.latest(source.initial(), FAR)):
                with pytest.raises(FatalError, match="before PostgreSQL 16") as refused:
                    asked()
                assert refused.value.code == "postgres.standby"
            return
        with pytest.raises(TransientError, match="has not told") as caught:
            source.latest(source.initial(), FAR)
        assert caught.value.code == "postgres.busy" and "pg_log_standby_snapshot" in str(caught.value.fix)
        with ThreadPoolExecutor() as pool:
            found = pool.submit(read, there, source.initial())
            wait_until(lambda: _answer(reading.url, "SELECT pg_log_standby_snapshot()") and found.done(), "it is read")
        assert found.result()[0] == [1]
