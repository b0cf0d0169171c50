"""All sensors of a project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from conduit_dagster.config.project import Project
from sensors.alerts import alert_sensor
from sensors.lifecycle import lifecycle_sensor
from sensors.recovery import recovery_sensor


def define_sensors(project: Project, jobs: Sequence[Any]) -> list[dg.SensorDefinition]:
    """None where there is no pipeline: Dagster wants a sensor to have jobs."""
    root = project.root
    return [recovery_sensor(root, jobs), lifecycle_sensor(root, jobs), alert_sensor(project)] if jobs else []
