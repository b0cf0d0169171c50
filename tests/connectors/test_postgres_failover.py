"""Failover and restore: a server on another timeline, with or without what was read from the old one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from lab.postgres_reading import PostgresReading, drained, travelled
from lab.postgres_server import PostgresServer, installations

from conduit_dagster.recovery.errors import FatalError
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
    server.stop(immediate=False)
    backup = server.data.with_name("backup")
    subprocess.run(["cp", "-a", server.data, backup], check=True)
    server.start()
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
