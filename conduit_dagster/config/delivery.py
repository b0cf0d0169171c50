"""Delivery, recovery and trigger of a pipeline, and the times at which a timed trigger starts it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from conduit_dagster.config.findings import did_you_mean, refuse
from conduit_dagster.config.model_findings import Section
from conduit_dagster.config.scalars import ByteSize, Cron, Duration, PositiveAge, PositiveDuration
from conduit_dagster.config.tree import Mapped

Strategy = Literal["exactly-once", "at-least-once", "at-most-once"]
LogMode = Literal["auto", "records", "positions"]
Redelivery = Literal["one-at-a-time", "bisect"]
FanIn = Literal["merge", "join", "alternate"]
TriggerKind = Literal["continuous", "available-now", "every", "cron"]

TIMED = ("every", "cron")
_KINDS = ("continuous", "available-now")


class LogRetention(Section):
    """How long the commit log keeps entries that every consumer has handled. At least one limit is required."""

    time: PositiveAge | None = None
    """Age up to which entries are kept, such as `7d` or `12h`."""

    bytes: ByteSize | None = None
    """Bytes of closed segments that are kept, the newest first. With both limits, entries beyond either may be removed.
    """

    partitions: Literal["hourly", "daily", "weekly", "monthly"] | None = None
    """Time partitions in Dagster (UTC) of the kept entries, by the time they were logged: the job `ID__backfill` sends
    them again. Needs `time`.
    """

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.time is None and self.bytes is None:
            raise refuse("log-retention has no limit", expected="time, bytes or both", fix="add time: 7d")
        if self.partitions is not None and self.time is None:
            raise refuse("partitions need a time to begin at", expected="time beside it", fix="add time: 7d", at="time")
        return self


class DeliverySettings(Section):
    """Delivery guarantee of a pipeline, and the size of its batches."""

    strategy: Strategy = "at-least-once"
    """How often a record reaches a destination. `exactly-once` needs destinations that support it."""

    batch_size: Annotated[int, Field(ge=1)] = 1_000_000
    """Maximum number of records per batch. Only a backlog fills a batch; a quiet source has small ones."""

    batch_bytes: ByteSize = 128_000_000
    """Maximum number of bytes per batch: `128MB`, `64MiB` or a plain number."""

    max_in_flight: Annotated[int, Field(ge=1, le=3)] = 1
    """Maximum number of unacked steps at a time."""

    log: LogMode = "auto"
    """Data kept so that a step can be read again: its records, or their positions. `auto` decides by the sources."""

    drift: bool = False
    """Let each destination proceed at its own pace. Needs the log of records."""

    redelivery: Redelivery = "bisect"
    """How records are sent again after a bulk error that names none of them: in halves, or one by one."""

    offset_flush_interval: PositiveDuration = 1.0
    """How often the acks of a destination that acks record by record are made durable."""

    log_segment_size: ByteSize = 1_000_000_000
    """Size in bytes after which the commit log begins a new segment."""

    log_retention: LogRetention | None = None
    """Handled entries that compaction leaves in the commit log. Without it, all of them may be compacted."""

    shutdown_timeout: Duration = 30.0
    """How long a graceful stop waits for the records in flight."""

    max_lag: PositiveAge | None = None
    """How long records may wait for their ack, such as `10m`. Dagster reports pipelines that exceed it."""

    @model_validator(mode="after")
    def _logs_what_is_needed(self) -> Self:
        for name, is_set in (("drift", self.drift), ("log-retention", self.log_retention is not None)):
            if is_set and self.log == "positions":
                message, fix = f"{name} needs the log of records", f"remove log, or {name}"
                raise refuse(message, expected="records or auto", fix=fix, at="log")
        return self


class Recovery(Section):
    """Restarts of a pipeline after a transient error, with exponential backoff (Conduit's keys)."""

    min_delay: PositiveDuration = 1.0
    """Wait before the first restart."""

    max_delay: PositiveDuration = 600.0
    """Maximum wait before a restart."""

    backoff_factor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """Factor by which the wait grows with each restart. 0 means 2, as in Conduit; 1 keeps the wait constant;
    nothing in between.
    """

    max_retries: Annotated[int, Field(ge=-1)] = -1
    """Maximum number of restarts within the window; one more error degrades the pipeline. -1 means no limit, 0 no
    restart at all.
    """

    max_retries_window: PositiveDuration = 300.0
    """How long a restart counts against `max-retries`; one window without an error resets the wait."""

    jitter: bool = False
    """Randomize the waits. Off: the waits are exact."""

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if 0 < self.backoff_factor < 1:
            raise refuse("the wait would shrink", expected="0, or 1 and more", at="backoff-factor")
        return self

    @property
    def factor(self) -> float:
        """Effective backoff factor."""
        return self.backoff_factor or 2.0

    @property
    def delays_problem(self) -> str | None:
        """Why the two delays exclude each other; None if they don't."""
        if self.min_delay <= self.max_delay:
            return None
        return f"min-delay ({self.min_delay:g}s) is longer than max-delay ({self.max_delay:g}s)"

    def over(self, base: Recovery) -> Recovery:
        """Return ``base``, overridden by the values set in this section.

        Does not check :attr:`delays_problem`: parsing checks the combination that will run.
        """
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return base.model_copy(update=own)


class Trigger(Section):
    """When a pipeline runs: `continuous`, `available-now`, `{every: 5m}` or `{cron: "0 * * * *"}`."""

    kind: TriggerKind = "continuous"
    """`continuous` runs until stopped, `available-now` until the sources are drained, as do the timed ones, whose kind
    need not be given.
    """

    every: PositiveDuration | None = None
    """Time between the starts of two runs."""

    cron: Cron | None = None
    """A cron expression of five fields."""

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, data: Any) -> Any:
        if isinstance(data, str):
            if data not in _KINDS:
                raise refuse("there is no such trigger", expected=_EXPECTED, fix=_trigger_fix(data))
            return {"kind": data}
        if isinstance(data, Mapped) or (isinstance(data, Mapping) and data and "kind" not in data):
            return _timed(cast(Mapping[str, Any], data))
        return cast(Any, data)


_EXPECTED = "continuous, available-now, {every: 5m} or {cron: 0 * * * *}"


def _timed(data: Mapping[str, Any]) -> dict[str, Any]:
    kind, chosen = data.get("kind"), [name for name in TIMED if name in data]
    if kind in _KINDS and not chosen:
        return dict(data)
    if kind is not None and chosen and [kind] != chosen:
        message = f"a trigger with {' and '.join(chosen)} is not of the kind {kind}"
        raise refuse(message, expected=_EXPECTED, fix="leave out kind")
    if len(chosen) != 1:
        word = next((key for key in data if key not in TIMED), "")
        message = "a trigger needs exactly one of every and cron"
        raise refuse(message, expected=_EXPECTED, fix=_trigger_fix(word))
    return {**data, "kind": chosen[0]}


def _trigger_fix(word: str) -> str | None:
    name = next((name for name in TIMED if word.split()[:1] == [name]), None)
    if name is not None:
        value = word.removeprefix(name).strip() or {"every": "5m", "cron": "0 * * * *"}[name]
        return f'write {{{name}: "{value}"}}'
    return did_you_mean(word, [*_KINDS, *TIMED]) if word else None


def next_tick(trigger: Trigger, last: datetime) -> datetime:
    """Return the first tick, in UTC, after ``last``, the start of the previous run. Ticks during a run are skipped."""
    if trigger.every is not None:
        return last + timedelta(seconds=trigger.every)
    # imported here: most commands read no cron expression
    from croniter import croniter

    assert trigger.cron is not None, "a timed trigger has one of the two"
    return croniter(trigger.cron, last).get_next(datetime)


def tick_after_run(trigger: Trigger, ended: datetime, lasted: float) -> datetime:
    """Return the first tick, in UTC, after a run that ``ended`` now and ``lasted`` so many seconds.

    The run's start is counted back from now: the clock may have been set since. Ticks of ``cron`` during the run are
    skipped; an ``every`` that has passed is due at once.
    """
    return next_tick(trigger, ended - timedelta(seconds=lasted) if trigger.every is not None else ended)


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
