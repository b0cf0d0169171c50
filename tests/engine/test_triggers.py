"""When a timed pipeline runs next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from conduit_dagster.config.delivery import Trigger, first_tick, next_tick

NOON = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)
EVERY = Trigger(kind="every", every=90)
DAILY = Trigger(kind="cron", cron="15 3 * * *")


def test_every_begins_at_once_and_counts_from_the_start_of_the_run_before() -> None:
    assert first_tick(EVERY, NOON) == NOON
    assert next_tick(EVERY, NOON) == NOON + timedelta(seconds=90)


@pytest.mark.parametrize(
    ("last", "tick"),
    [
        (NOON, datetime(2026, 11, 22, 3, 15, tzinfo=UTC)),
        (datetime(2026, 11, 22, 3, 14, 59, tzinfo=UTC), datetime(2026, 11, 22, 3, 15, tzinfo=UTC)),
        # the tick itself has ended
        (datetime(2026, 11, 22, 3, 15, tzinfo=UTC), datetime(2026, 11, 23, 3, 15, tzinfo=UTC)),
    ],
)
def test_cron_runs_at_its_time_in_utc(last: datetime, tick: datetime) -> None:
    assert next_tick(DAILY, last) == tick
    assert first_tick(DAILY, last) == tick
