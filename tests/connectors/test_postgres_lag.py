"""How long a change of the postgres source has waited."""

from __future__ import annotations

import pytest
from lab.postgres_reading import PostgresReading, drained

from conduit_dagster.connectors.postgres.wal_history import WalTimes

TABLE = "CREATE TABLE a (id bigint PRIMARY KEY, t text)"


def test_seconds_behind_are_those_since_all_was_read(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO a VALUES (1, 'x')")
    _, position = drained(source, position)
    assert source.lag_seconds(position) == 0
    reading.execute("INSERT INTO a VALUES (2, 'x')")
    behind = source.lag_seconds(position)
    assert behind is not None and 0 < behind < 60
    # only the waiting change counts, however long there was none before it
    assert source.lag_seconds({**position, "at_ms": position["at_ms"] - 3_600_000}) == pytest.approx(behind, abs=60)
    assert source.lag_seconds(source.initial()) is None


def test_a_position_of_which_the_wal_has_more_knows_no_later_time() -> None:
    times = WalTimes()
    assert times.before(100) is None
    for lsn, at in ((100, 1.0), (200, 2.0), (200, 3.0), (150, 4.0), (300, 5.0)):
        times.add(lsn, at)
    assert [times.before(lsn) for lsn in (99, 100, 199, 200, 299, 300, 10**9)] == [None, 1.0, 1.0, 3.0, 3.0, 5.0, 5.0]


def test_only_so_many_times_are_kept() -> None:
    times = WalTimes()
    for lsn in range(1, 10_001):
        times.add(lsn, float(lsn))
    assert times.before(10_000) == 10_000
    known = {times.before(lsn) for lsn in range(1, 10_001)}
    assert len(known) <= 1_001
    assert all(at is None or at <= lsn for lsn in range(1, 10_001) for at in [times.before(lsn)])
