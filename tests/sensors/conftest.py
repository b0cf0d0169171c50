"""A code location for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from lab.sensors_lab import Location


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    for name in ("CONDUIT_PIPELINES", "CONDUIT_HOME", "CONDUIT_STATE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("conduit_dagster.sensors.tick._STAY", 0.0)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Location(tmp_path, instance)
