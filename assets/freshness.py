"""Freshness policies of timed pipelines: late once two runs in a row should have ended and have not."""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

from conduit_dagster.config.cron import TIMED, longest_gap
from conduit_dagster.config.delivery import Trigger

_LEAST = timedelta(minutes=1)


def freshness_policy(trigger: Trigger) -> dg.FreshnessPolicy | None:
    """Return the policy of a timed pipeline's acks, which every run that succeeds materialises; None for others.

    A continuous pipeline with nothing to do is not late. Dagster evaluates policies if ``freshness.enabled`` is set in
    ``dagster.yaml``.
    """
    if trigger.kind not in TIMED:
        return None
    longest = max(longest_gap(trigger), _LEAST)
    return dg.FreshnessPolicy.time_window(fail_window=2 * longest, warn_window=longest + longest / 2)
