"""Checks of pipeline files that can't be loaded, evaluated by the lifecycle sensor."""

from __future__ import annotations

import dagster as dg
import pytest
from lab.sensors_lab import FILES, Location

from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.resources import spark_resource

SENSOR = "conduit_lifecycle"
BAD = dg.AssetKey(["bad", "broken", "file"])


def test_a_broken_file_fails_its_check_until_it_is_valid_again(location: Location) -> None:
    """Visible without any materialisation."""
    location.write()
    bad = location.root / "pipelines" / "bad.yaml"
    bad.write_text("pipelines: [")
    location.tick(SENSOR)
    assert (location.evaluated(FILES, "no_broken_files"), location.evaluated(BAD, "can_run")) == ([False], [False])
    location.tick(SENSOR)
    assert location.evaluated(BAD, "can_run") == [False]  # once for each change
    assert location.definitions.resolve_asset_graph().has(BAD)
    location.write("bad")
    location.tick(SENSOR)
    assert location.evaluated(FILES, "no_broken_files") == [True, False]
    assert location.evaluated(BAD, "can_run") == [True, False]


def test_the_only_file_is_broken_and_its_checks_tell(location: Location) -> None:
    (location.root / "pipelines" / "bad.yaml").write_text("pipelines: [")
    location.tick(SENSOR)
    assert (location.evaluated(FILES, "no_broken_files"), location.evaluated(BAD, "can_run")) == ([False], [False])
    location.write("bad")
    location.tick(SENSOR)
    assert location.evaluated(BAD, "can_run") == [True, False]


@pytest.mark.parametrize("kind", ["first", "restart"])
@pytest.mark.parametrize("description", ["none", "mended"])
def test_a_run_that_met_a_broken_file_is_started_again_once_that_is_valid(
    location: Location, monkeypatch: pytest.MonkeyPatch, kind: str, description: str
) -> None:
    """As one that was saved half-edited while a run waited in a queue; also where the file is then as it was before."""
    monkeypatch.setattr(spark_resource, "open_session", lambda *_: None)
    location.write()
    if kind == "restart":
        location.begin(digest=open_catalogue(location.project).bound[0].digest)
        location.fail()
    (request,) = location.tick("conduit_recovery" if kind == "restart" else SENSOR)
    job = location.definitions.resolve_job_def("orders")
    (location.root / "pipelines" / "orders.yaml").write_text("pipelines: [")
    job.execute_in_process(instance=location.instance, raise_on_error=False, tags=dict(request.tags))
    assert location.tick() == location.tick(SENSOR) == []
    location.write(description=description)
    assert location.tick() == []
    assert (location.status(), location.recovery().cause["code"]) == (("degraded", ""), "pipeline.invalid")
    assert [request.job_name for request in location.tick(SENSOR)] == ["orders"]


def test_a_file_that_is_broken_for_its_runs_alone_is_tried_once(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a variable that it names is set for the code server, and not for runs."""
    monkeypatch.setattr(spark_resource, "open_session", lambda *_: None)
    monkeypatch.setenv("ABOUT", "orders")
    location.write(description="${env:ABOUT}")
    assert location.tick() == []  # which has seen it
    (request,) = location.tick(SENSOR)
    job = location.definitions.resolve_job_def("orders")
    with monkeypatch.context() as runs:
        runs.delenv("ABOUT")
        job.execute_in_process(instance=location.instance, raise_on_error=False, tags=dict(request.tags))
    assert location.tick() == []
    assert location.recovery().cause["code"] == "pipeline.invalid"
    assert location.tick() == location.tick(SENSOR) == []
