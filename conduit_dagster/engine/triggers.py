"""When a timed pipeline runs next. Times are UTC, as in Dagster's schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from croniter import croniter

from conduit_dagster.config.delivery import Trigger

TIMED = ("every", "cron")


def next_tick(trigger: Trigger, last: datetime) -> datetime:
    """Return the first tick after ``last``, the start of the previous run. Ticks during a long run are skipped."""
    if trigger.every is not None:
        return last + timedelta(seconds=trigger.every)
    assert trigger.cron is not None, "a timed trigger has one of the two"
    return croniter(trigger.cron, last).get_next(datetime)


def first_tick(trigger: Trigger, now: datetime) -> datetime:
    """``every`` begins at once, ``cron`` at its time."""
    return now if trigger.every is not None else next_tick(trigger, now)


def utc() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)
