"""Timed triggers: cron expressions that both croniter and Dagster accept, and the time of the next run, in UTC.

croniter is imported at its first use: most commands read no cron expression.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conduit_dagster.config.delivery import Trigger

TIMED = ("every", "cron")
_FIELDS = ("minute, 0-59", "hour, 0-23", "day of the month, 1-31", "month, 1-12", "day of the week, 0-7")


def cron_problem(text: str) -> str | None:
    """Return the problem of a cron expression, or None. A date that never occurs (30 February) is a problem."""
    from croniter import CroniterBadDateError, CroniterError, croniter

    fields = text.split()
    if not text.startswith("@") and len(fields) != len(_FIELDS):
        return f"it has {len(fields)} fields, not {len(_FIELDS)}"
    for number, field in enumerate(fields if len(fields) > 1 else ()):
        # croniter draws a random value for `r`, a different one in each process
        if not _is_accepted(" ".join([*"*" * number, field, *"*" * (4 - number)])) or "r" in field.lower().split(","):
            return f"{_FIELDS[number]}: {field[:20]!r} is no value, range or step"
    try:
        days, months = croniter.expand(text)[0][2:4]
        croniter(text).get_next()
    except CroniterBadDateError:
        return "no month has that day"
    except CroniterError:
        return "it is not a cron expression"
    # Dagster refuses these even if a day of the week would match too
    return "no month has that day" if months == [2] and days in ([30], [31]) else None


def _is_accepted(text: str) -> bool:
    from croniter import CroniterError, croniter

    try:
        croniter.expand(text)
    except CroniterError:
        return False
    return True


def next_tick(trigger: Trigger, last: datetime) -> datetime:
    """Return the first tick after ``last``, the start of the previous run. Ticks during a long run are skipped."""
    from croniter import croniter

    if trigger.every is not None:
        return last + timedelta(seconds=trigger.every)
    assert trigger.cron is not None, "a timed trigger has one of the two"
    return croniter(trigger.cron, last).get_next(datetime)


_NEXT = 60
"""Number of ticks to check one by one, for schedules less frequent than daily."""
_SAMPLES, _APART = 40, timedelta(hours=6)
"""Number and distance of the sampled times; they include a night and a weekend."""


def longest_gap(trigger: Trigger) -> timedelta:
    """Return the longest time between two ticks, within the next sixty ticks and ten days."""
    if trigger.every is not None:
        return timedelta(seconds=trigger.every)
    assert trigger.cron is not None, "a timed trigger has one of the two"
    return _longest_gap(trigger.cron, datetime.now(UTC).replace(minute=0, second=0, microsecond=0))


@lru_cache(maxsize=256)
def _longest_gap(cron: str, now: datetime) -> timedelta:
    from croniter import croniter

    ticks = croniter(cron, now)
    found = [ticks.get_next(datetime) for _ in range(_NEXT)]
    gaps = [after - before for before, after in pairwise(found)]
    for number in range(_SAMPLES):
        around = croniter(cron, now + number * _APART)
        gaps.append(around.get_next(datetime) - around.get_prev(datetime))
    return max(gaps)


def first_tick(trigger: Trigger, now: datetime) -> datetime:
    """Return the first tick: now for ``every``, the next due time for ``cron``."""
    return now if trigger.every is not None else next_tick(trigger, now)
