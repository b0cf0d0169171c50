"""Ticks of schedules and sensors, most of which Dagster keeps for ever by default."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickStatus

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", [InstigatorType.SCHEDULE, InstigatorType.SENSOR])
def test_this_projects_dagster_keeps_no_tick_for_ever(tmp_path: Path, kind: InstigatorType) -> None:
    """A pipeline with ``every`` has 1,440 of them a day, whatever its interval."""
    settings = (ROOT / "dagster.yaml").read_text().replace(".conduit/", f"{tmp_path}/")
    (tmp_path / "dagster.yaml").write_text(settings)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        days = instance.get_tick_retention_settings(kind)
    assert all(days[status] > 0 for status in (TickStatus.SKIPPED, TickStatus.SUCCESS, TickStatus.FAILURE))
