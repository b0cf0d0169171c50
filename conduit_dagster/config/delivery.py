"""How a pipeline delivers, and when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from conduit_dagster.config.check import Section, refuse
from conduit_dagster.config.findings import did_you_mean
from conduit_dagster.config.scalars import ByteSize, Cron, Duration, PositiveDuration
from conduit_dagster.config.tree import Mapped

Strategy = Literal["exactly-once", "at-least-once", "at-most-once"]
LogMode = Literal["auto", "records", "positions"]
Redelivery = Literal["one-at-a-time", "bisect"]
FanIn = Literal["merge", "join", "alternate"]
TriggerKind = Literal["continuous", "available-now", "every", "cron"]

_KINDS = ("continuous", "available-now")
_TIMED = ("every", "cron")


class Delivery(Section):
    """What a pipeline promises its destinations, and in which portions it moves records."""

    strategy: Strategy = "at-least-once"
    """How often a record reaches a destination. `exactly-once` needs destinations that can keep it."""

    batch_size: Annotated[int, Field(ge=1)] = 1_000_000
    """Records per batch, at most. Only a backlog fills a batch; a quiet source gives small ones."""

    batch_bytes: ByteSize = 128_000_000
    """Bytes per batch, at most: `128MB`, `64MiB` or a plain number."""

    max_in_flight: Annotated[int, Field(ge=1, le=3)] = 1
    """Steps that may be unacked at a time."""

    log: LogMode = "auto"
    """What is kept to read a step again: its records, or their positions. `auto` decides by the sources."""

    drift: bool = False
    """Let each destination go at its own pace. Needs the log of records."""

    redelivery: Redelivery = "one-at-a-time"
    """How records are sent again after a bulk error that names none of them."""

    offset_flush_interval: PositiveDuration = 1.0
    """How often acks of a destination that gives them record by record are made durable."""

    log_segment_size: ByteSize = 1_000_000_000
    """Bytes after which the commit log begins a new segment."""

    shutdown_timeout: Duration = 30.0
    """How long a graceful stop waits for the records in flight."""

    @model_validator(mode="after")
    def _drift_needs_records(self) -> Self:
        if self.drift and self.log == "positions":
            expected, fix = "records or auto", "remove log, or drift"
            raise refuse("drift needs the log of records", expected=expected, fix=fix, at="log")
        return self


class Recovery(Section):
    """How a pipeline comes back after a transient error: exponential backoff (Conduit's keys)."""

    min_delay: PositiveDuration = 1.0
    """The wait before the first restart."""

    max_delay: PositiveDuration = 600.0
    """The longest wait before a restart."""

    backoff_factor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """By what the wait grows with each restart. 0 means 2, as in Conduit; 1 keeps the wait constant."""

    max_retries: Annotated[int, Field(ge=-1)] = -1
    """Restarts within the window before the pipeline is given up: -1 never, 0 at the first error."""

    max_retries_window: PositiveDuration = 300.0
    """How long a restart counts against `max-retries`; one window without an error resets the wait."""

    jitter: bool = False
    """Spread the waits at random. Off: the waits are exact."""

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if 0 < self.backoff_factor < 1:
            raise refuse("the wait would shrink", expected="0, or 1 and more", at="backoff-factor")
        return self

    @property
    def factor(self) -> float:
        """The factor to compute with."""
        return self.backoff_factor or 2.0

    def over(self, base: Recovery) -> Recovery:
        """This section's own values over another's.

        Never checks that ``min_delay <= max_delay``: parsing does, for the combination that will run.
        """
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return base.model_copy(update=own)


class Trigger(Section):
    """When a pipeline runs: `continuous`, `available-now`, `{every: 5m}` or `{cron: "0 * * * *"}`."""

    kind: TriggerKind = "continuous"
    """`continuous` runs until stopped, `available-now` until the sources are drained, like the timed ones."""

    every: PositiveDuration | None = None
    """The time between the starts of two runs."""

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
    chosen = [name for name in _TIMED if name in data]
    if len(chosen) != 1:
        word = next((key for key in data if key not in _TIMED), "")
        message = "a trigger needs exactly one of every and cron"
        raise refuse(message, expected=_EXPECTED, fix=_trigger_fix(word))
    return {**data, "kind": chosen[0]}


def _trigger_fix(word: str) -> str | None:
    return did_you_mean(word, [*_KINDS, *_TIMED]) if word else None
