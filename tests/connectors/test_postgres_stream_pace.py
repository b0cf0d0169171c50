"""How far and how often the stream is read while another transaction, open for long, has the server decode it all."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from lab.postgres_reading import WHOLE, PostgresReading, drained, records_of, travelled
from lab.waiting import wait_until

from conduit_dagster.connectors.postgres import stream_pace
from conduit_dagster.connectors.postgres.source import PostgresSource
from conduit_dagster.sdk import Limit, Position

WAL = "SELECT pg_logical_emit_message(false, 'none of ours', repeat('x', %s))"


def _lsn(position: Position) -> int:
    high, low = position["lsn"].split("/")
    return (int(high, 16) << 32) + int(low, 16)


class _Behind:
    """A source that has read all changes, and a transaction that has been open for 70 MB of WAL."""

    def __init__(self, reading: PostgresReading) -> None:
        self.reading = reading
        reading.execute("CREATE TABLE a (id bigint PRIMARY KEY)")
        reading.execute("CREATE TABLE others (id bigint)")
        self.source: PostgresSource = reading.source(tables="a")
        _, position = drained(self.source)
        self.open = psycopg.connect(reading.url)
        self.open.execute("INSERT INTO others VALUES (1)")
        reading.execute(WAL, 70 << 20)
        reading.execute("INSERT INTO a VALUES (1)")
        _, self.position = drained(self.source, position)

    def latest(self, limit: Limit = WHOLE, drains: bool = False) -> Position:
        horizon = self.source.horizon() if drains else None
        return travelled(self.source.latest(travelled(self.position), limit, horizon))


@pytest.fixture
def behind(reading: PostgresReading) -> Iterator[_Behind]:
    made = _Behind(reading)
    with made.open:
        yield made


def test_it_is_read_less_often(behind: _Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read makes the server decode 70 MB again; a run that drains waits for nothing."""
    usual = stream_pace._RATE
    monkeypatch.setattr(stream_pace, "_RATE", 1 << 16)  # on a busy machine the rest is over before it is looked for
    behind.reading.execute("INSERT INTO a VALUES (2)")
    assert behind.latest() == behind.position
    assert behind.latest(drains=True) != behind.position
    behind.source.close()
    # of another run
    behind.source = behind.reading.source(tables="a")
    first = behind.latest()
    assert [record.key for record in records_of(behind.source, behind.position, first)] == [{"id": 2}]
    behind.source.ack(first, 1)
    behind.position = first
    behind.reading.execute("INSERT INTO a VALUES (3)")
    assert behind.latest() == first
    monkeypatch.setattr(stream_pace, "_RATE", usual)
    wait_until(lambda: behind.latest() != first, "it is read after a while")
    assert len(records_of(behind.source, first, behind.latest(drains=True))) == 1


def test_a_range_is_as_long_as_what_is_decoded_before_it(behind: _Behind) -> None:
    """Up to sixteen times as long as without: otherwise a reader that is behind stays so."""
    behind.reading.execute(WAL, 2 << 20)
    behind.reading.execute("INSERT INTO a VALUES (2)")
    there = behind.reading.wal()
    assert _lsn(behind.latest(Limit(10, 1 << 16), drains=True)) == there
    assert _lsn(behind.latest(Limit(10, 1 << 12), drains=True)) == _lsn(behind.position) + 16 * 4 * (1 << 12)


def test_it_is_read_at_once_when_that_has_ended(behind: _Behind) -> None:
    behind.open.rollback()
    # the server notes which transactions are open, and forgets those before when the changes are confirmed
    behind.reading.execute("CHECKPOINT")
    behind.reading.execute("INSERT INTO a VALUES (2)")
    _, behind.position = drained(behind.source, behind.position)
    behind.source.close()
    behind.source = behind.reading.source(tables="a")
    for number in (3, 4):
        behind.reading.execute("INSERT INTO a VALUES (%s)", number)
        further = behind.latest()
        assert [record.key for record in records_of(behind.source, behind.position, further)] == [{"id": number}]
        behind.source.ack(further, 1)
        behind.position = further
