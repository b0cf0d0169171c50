"""The recovery sensor: restarts failed pipelines with backoff, exactly once per failure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from sensors.decisions import Decision, recovery
from sensors.known import Known
from sensors.tick import Tick, sensor_of

_DOES = "Restarts failed pipelines with backoff, and finds runs that died without a word."
_STAY = 4.25
"""Seconds. Dagster's loop asks a sensor at most every 5 s (DAGSTER_FACTS, 3): it looks on meanwhile. A tick that took
longer than that would miss the next one."""
_LEAD_NS = 10_000_000_000
"""A restart is launched this long before it is due: a tick away, and a run needs some seconds to start."""


def recovery_sensor(root: Path, jobs: Sequence[Any]) -> dg.SensorDefinition:
    """The one recovery sensor of a code location. Its cursor holds nothing: the stores decide."""
    tick = Tick(root, frozenset(job.name for job in jobs), _decide)
    return sensor_of(tick, "conduit_recovery", _DOES, jobs, _STAY)


def _decide(known: Known, now_ns: int) -> Decision:
    return recovery(known, now_ns, _LEAD_NS)
