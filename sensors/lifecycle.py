"""The lifecycle sensor: what the files say is running runs, what an operator stopped does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from sensors.decisions import lifecycle
from sensors.tick import Tick, sensor_of

_DOES = "Starts pipelines whose file says running, obeys pipelines start and stop, picks up changed files."


def lifecycle_sensor(root: Path, jobs: Sequence[Any]) -> dg.SensorDefinition:
    """The one lifecycle sensor of a code location."""
    tick = Tick(root, frozenset(job.name for job in jobs), lifecycle, finds_gone=True)
    return sensor_of(tick, "conduit_lifecycle", _DOES, jobs)
