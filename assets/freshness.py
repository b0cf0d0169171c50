"""Freshness of a pipeline's acks: when Dagster shows them as late, and how an idle run keeps them fresh."""

from __future__ import annotations

import math
import time
from datetime import timedelta

import dagster as dg

from conduit_dagster.assets.events import RunSnapshot
from conduit_dagster.config.delivery import TIMED, longest_gap
from conduit_dagster.config.pipeline import Pipeline

_LEAST = timedelta(minutes=1)
"""Dagster's shortest window."""
_APART = timedelta(seconds=1)
"""Minimum difference between the two windows: Dagster refuses equal ones."""


def freshness_policy(config: Pipeline) -> dg.FreshnessPolicy | None:
    """Return the policy of a pipeline's acks; None if no setting defines when they are late.

    Every successful run of a timed pipeline materialises them. They are late once two runs in a row should have ended
    and have not; with ``delivery.max-lag``, once that has passed since a run should have begun. A continuous pipeline
    has a policy with ``max-lag`` only: see :class:`Heartbeat`. Dagster evaluates policies if ``freshness.enabled`` is
    set in ``dagster.yaml``.
    """
    trigger, lag = config.trigger, config.delivery.max_lag
    max_lag = None if lag is None else timedelta(seconds=lag)
    if trigger.kind in TIMED:
        return _timed(max(longest_gap(trigger), _LEAST), max_lag)
    return None if max_lag is None or trigger.kind != "continuous" else _continuous(max_lag)


def _timed(longest: timedelta, max_lag: timedelta | None) -> dg.FreshnessPolicy:
    """``longest``: longest time between two runs."""
    if max_lag is None:
        return dg.FreshnessPolicy.time_window(fail_window=2 * longest, warn_window=longest + longest / 2)
    return dg.FreshnessPolicy.time_window(fail_window=longest + max(max_lag, _APART), warn_window=longest)


def _continuous(max_lag: timedelta) -> dg.FreshnessPolicy:
    """For ``max_lag`` up to half a minute both windows would be Dagster's shortest: then it only fails."""
    fail, warn = max(2 * max_lag, _LEAST), max(max_lag, _LEAST)
    return dg.FreshnessPolicy.time_window(fail_window=fail, warn_window=warn if fail - warn >= _APART else None)


class Heartbeat:
    """Schedule by which a continuous run materialises the acks without any move, while ``delivery.max-lag`` is kept.

    At least every half of it, so that an idle pipeline is not late, but no more often than other events of the run.
    """

    def __init__(self, max_lag: float | None, every: float) -> None:
        """``every``: minimum seconds between two materialisations. Without ``max_lag`` it is never due."""
        self._max_lag = 0.0 if max_lag is None else max_lag
        self._interval = math.inf if max_lag is None else max(every, max_lag / 2)
        self._every = every
        self._shown = time.monotonic()

    def show(self, now: float) -> None:
        """Record that the acks are materialised now."""
        self._shown = now

    def is_due(self, snapshot: RunSnapshot, now: float) -> bool:
        """Return whether the acks are due for materialisation, and may be materialised."""
        return now >= self._shown + self._interval and snapshot.keeps(self._max_lag)

    def next_look(self, now: float) -> float:
        """Return when the run is to be checked again."""
        due = self._shown + self._interval
        return min(due, now + self._every) if due > now else now + self._every
