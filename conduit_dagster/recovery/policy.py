"""Statuses of a pipeline (reference 3, Pipeline state management), and its restarts after a transient error.

The schedule is a pure function of the policy, past restarts and the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from conduit_dagster.config.delivery import Recovery


_SECOND = 1_000_000_000


class PipelineStatus(StrEnum):
    """Status of a pipeline in the state store, metrics, checks and commands; stored as its text.

    Not to be confused with ``status`` in a pipeline file: whether the pipeline is meant to run.
    """

    RUNNING = "running"
    RECOVERING = "recovering"
    """Waiting for a restart after a transient error, or in its first window after one."""
    DEGRADED = "degraded"
    """Ended by a fatal error, by the last restart's error, or by a forced stop."""
    STOPPED = "stopped"
    """Ended on request (reason ``user`` or ``system``), or never run."""


@dataclass(frozen=True)
class Policy:
    """Exponential backoff with a limit. Times are in seconds (reference 2, Configuration).

    The caller must ensure ``0 < min_delay <= max_delay``, ``factor >= 1`` and ``max_retries >= -1``; for a pipeline
    file and the project's settings, configuration parsing checks this.
    """

    min_delay: float = 1.0
    max_delay: float = 600.0
    factor: float = 2.0
    max_retries: int = -1
    """Maximum restarts within the window: -1 means no limit, 0 disables recovery."""
    window: float = 300.0
    """How long a restart counts, and how long a pipeline must run without an error to reset the attempts."""
    jitter: bool = False

    @staticmethod
    def of(own: Recovery, general: Recovery) -> Policy:
        """Return the policy of a pipeline: its ``recovery`` section overrides the project's."""
        settings = own.over(general)
        return Policy(
            settings.min_delay,
            settings.max_delay,
            settings.factor,
            settings.max_retries,
            settings.max_retries_window,
            settings.jitter,
        )


@dataclass(frozen=True)
class RestartHistory:
    """Stored history of a pipeline's restarts. A manual start resets it."""

    attempt: int = 0
    """Number of consecutive restarts so far."""
    restarts: tuple[int, ...] = ()
    """Due times in nanoseconds since the epoch, oldest first: of the last restart and of those that may still count."""


FRESH: Final = RestartHistory()
"""No restarts."""


@dataclass(frozen=True)
class Wait:
    """Decision to restart the pipeline, not before ``at_ns``."""

    attempt: int
    """Number of this restart, from 1."""
    delay: float
    """Delay in seconds."""
    at_ns: int
    past: RestartHistory
    """History to store for the next decision."""


@dataclass(frozen=True)
class GiveUp:
    """Decision to give up because all restarts are used: the pipeline is degraded."""

    attempt: int
    """Number of restarts that counted."""
    reason: str
    """Human-readable explanation, one sentence."""


def decide(
    policy: Policy, past: RestartHistory, now_ns: int, spread: Callable[[], float] = random.random
) -> Wait | GiveUp:
    """Decide what follows a transient error at ``now_ns``. Call once per error (CASES B1-B5).

    ``spread`` returns the jitter, in [0, 1]; it is not called if the policy has no jitter.
    """
    past = _until(past, now_ns)
    counting = _counting(policy, past, now_ns)
    if 0 <= policy.max_retries <= len(counting):
        return GiveUp(len(counting), _spent(policy, len(counting)))
    attempt = 1 if settled(policy, past, now_ns) else past.attempt + 1
    delay = _delay(policy, attempt, spread)
    at_ns = now_ns + round(delay * _SECOND)
    # a restart that no longer counts never will again; without a limit none counts, and only the last one matters
    kept = counting if policy.max_retries > 0 else ()
    return Wait(attempt, delay, at_ns, RestartHistory(attempt, (*kept, at_ns)))


def settled(policy: Policy, past: RestartHistory, now_ns: int) -> bool:
    """Return whether the pipeline has run for one window without an error since its last restart was due.

    It then counts as running again, and its next error as the first one. True if it was never restarted.
    """
    return not past.restarts or now_ns - past.restarts[-1] >= _ns(policy.window)


def _until(past: RestartHistory, now_ns: int) -> RestartHistory:
    # a clock that was set back must not make a restart count for longer than a window from now
    return RestartHistory(past.attempt, tuple(min(due, now_ns) for due in past.restarts))


def _counting(policy: Policy, past: RestartHistory, now_ns: int) -> tuple[int, ...]:
    return tuple(due for due in past.restarts if now_ns - due < _ns(policy.window))


def _delay(policy: Policy, attempt: int, spread: Callable[[], float]) -> float:
    try:
        grown = policy.min_delay * policy.factor ** (attempt - 1)
    except OverflowError:
        grown = policy.max_delay
    delay = min(policy.max_delay, grown)
    if not policy.jitter:
        return delay
    return min(delay, policy.min_delay + spread() * (delay - policy.min_delay))


def _spent(policy: Policy, count: int) -> str:
    if not policy.max_retries:
        return "recovery is switched off (max-retries: 0)"
    times = "once" if count == 1 else f"{count} times"
    limits = f"max-retries: {policy.max_retries}, max-retries-window: {_span(policy.window)}"
    return f"it was restarted {times} within {_span(policy.window)} and failed again ({limits})"


def _span(seconds: float) -> str:
    """Format seconds as in a configuration file: ``1h30m``, ``2.5s``."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{value:g}{unit}" for value, unit in parts if value) or "0s"


def _ns(seconds: float) -> int:
    return round(seconds * _SECOND)
