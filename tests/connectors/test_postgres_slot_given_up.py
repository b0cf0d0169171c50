"""A slot that the server gives up, because it keeps more WAL than ``max_slot_wal_keep_size``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from lab.postgres_reading import PostgresReading, drained, records_of
from lab.postgres_server import PostgresServer, installations
from lab.waiting import wait_until

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit

pytestmark = pytest.mark.slow
FAR = Limit(10**6, 10**9)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A separate one, whose WAL is limited."""
    with closing(PostgresServer(installations()[0])) as made:
        yield made


@pytest.fixture
def reading(server: PostgresServer, tmp_path: Path) -> Iterator[PostgresReading]:
    with closing(PostgresReading(server.create_database(), tmp_path)) as made:
        yield made


def give_up(reading: PostgresReading) -> None:
    """Let the server give up the slot."""
    reading.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    reading.execute("SELECT pg_reload_conf()")

    def is_lost() -> bool:
        reading.execute("INSERT INTO a SELECT coalesce(max(id), 0) + 1 FROM a")
        reading.execute("SELECT pg_switch_wal()")
        reading.execute("CHECKPOINT")
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
        return reading.execute(status, reading.name) == [("lost",)]

    wait_until(is_lost, "the slot is given up")
    reading.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
    reading.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("moment", ["at a start", "in a run", "in a step"])
def test_a_slot_that_the_server_gave_up_is_named(reading: PostgresReading, moment: str) -> None:
    """In a step that was planned before, the server says that the slot can't be read, and not in each version why."""
    reading.execute("CREATE TABLE a (id bigint PRIMARY KEY)")
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO a VALUES (1)")
    end = source.latest(position, FAR)
    give_up(reading)
    if moment == "at a start":
        source = reading.source()
    with pytest.raises(FatalError) as caught:
        if moment == "in a step":
            records_of(source, position, end)
        else:
            source.latest(position, FAR)
    assert caught.value.code == "postgres.slot_lost" and "max_slot_wal_keep_size" in str(caught.value.fix)
