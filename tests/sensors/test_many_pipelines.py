"""The cost of a tick for a project with many pipelines and a long history."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from lab.sensors_lab import Location

from conduit_dagster.assets.names import PROJECT_TAG
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import Catalogue
from conduit_dagster.sensors import dagster_runs, known, tick

NAMES = [f"p{number}" for number in range(5)]


@pytest.fixture
def location(location: Location) -> Location:
    for name in NAMES:
        location.write(name)
    return location


@pytest.fixture
def asked(location: Location, monkeypatch: pytest.MonkeyPatch) -> list[dg.RunsFilter | None]:
    """The filter of each query for runs; the newest page of them has one run."""
    monkeypatch.setattr(dagster_runs, "_PAGE", 1)
    filters: list[dg.RunsFilter | None] = []
    real = location.instance.get_run_records

    def get_run_records(filters_: dg.RunsFilter | None = None, **more: Any) -> Any:
        filters.append(filters_)
        return real(filters_, **more)

    monkeypatch.setattr(location.instance, "get_run_records", get_run_records)
    return filters


@pytest.mark.parametrize("sensor", ["conduit_recovery", "conduit_lifecycle"])
def test_the_runs_of_running_pipelines_are_not_looked_up(
    location: Location, asked: list[dg.RunsFilter | None], sensor: str
) -> None:
    """With 200 pipelines and 20,000 runs a query for each took longer than a tick may."""
    for name in NAMES:
        location.run(name)
        location.begin(name, alive=True)
    assert location.tick(sensor) == []
    assert len(asked) == 1


def test_no_run_is_looked_up_by_the_tag_of_all_runs(location: Location, asked: list[dg.RunsFilter | None]) -> None:
    for name in NAMES:
        location.run(name, status="SUCCESS")
    location.tick("conduit_lifecycle")
    assert len(asked) == len(NAMES)
    assert not [one for one in asked if one is not None and PROJECT_TAG in one.tags]


def test_the_files_are_read_once_for_all_runs_to_renew(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that changed renews every run. The files of 200 pipelines take a second to read."""
    for name in NAMES:
        location.begin(name, digest="before", alive=True)
    location.definitions.get_repository_def()
    opened = list[Project]()
    real = known.open_catalogue

    def open_catalogue(project: Project) -> Catalogue:
        opened.append(project)
        return real(project)

    monkeypatch.setattr(known, "open_catalogue", open_catalogue)
    location.tick("conduit_lifecycle")
    assert [location.recovery(name).asked for name in NAMES] == ["renew"] * len(NAMES)
    # once for the tick, and once more for what may have changed since
    assert len(opened) == 2


def test_a_missing_file_is_recorded_once_and_not_by_each_tick(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = list[str]()
    real = tick.deprovision

    def deprovision(engine: sa.Engine, pipeline: str) -> bool:
        recorded.append(pipeline)
        return real(engine, pipeline)

    monkeypatch.setattr(tick, "deprovision", deprovision)
    location.begin("p1")
    location.end("stopped", "user", "p1")
    path = location.root / "pipelines" / "p1.yaml"
    text = path.read_text()
    for _ in range(2):
        path.unlink()
        for _ in range(3):
            location.tick("conduit_lifecycle")
        path.write_text(text)
        location.tick("conduit_lifecycle")
    assert recorded == ["p1", "p1"]
    assert location.events("p1").count("deprovisioned") == 1
