"""The lifecycle sensor: what the files say is running runs, what an operator stopped does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from sensors.decisions import lifecycle
from sensors.tick import Tick


def lifecycle_sensor(root: Path, jobs: Sequence[Any]) -> dg.SensorDefinition:
    """The one lifecycle sensor of a code location."""
    tick = Tick(root, frozenset(job.name for job in jobs), lifecycle, finds_gone=True)

    @dg.sensor(
        name="conduit_lifecycle",
        jobs=jobs,
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts pipelines whose file says running, obeys pipelines start and stop, picks up changed files.",
    )
    def conduit_lifecycle(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        return tick.run(context)

    return conduit_lifecycle
