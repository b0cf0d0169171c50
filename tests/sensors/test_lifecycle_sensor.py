"""The lifecycle sensor with Dagster's run storage and a real state store."""

from __future__ import annotations

import pytest
from lab.sensors_lab import Location

from conduit_dagster.engine.operate.starting import ask_start
from conduit_dagster.recovery.errors import FatalError

SENSOR = "conduit_lifecycle"


def test_what_the_file_says_is_running_is_started_once(location: Location) -> None:
    location.write()
    location.write("idle", status="stopped")
    location.write("nightly", trigger='{cron: "0 3 * * *"}')
    (request,) = location.tick(SENSOR)
    assert request.job_name == "orders"
    assert [again.run_key for again in location.tick(SENSOR)] == [request.run_key]
    location.launch(request)
    assert location.tick(SENSOR) == []


def test_what_the_system_stopped_comes_back_what_a_user_stopped_does_not(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location))
    location.end("stopped", "system")
    assert len(location.tick(SENSOR)) == 1
    location.end("stopped", "user")
    assert location.tick(SENSOR) == []
    assert ask_start(location.store, "orders", "operator")
    (request,) = location.tick(SENSOR)
    location.launch(request)
    assert location.tick(SENSOR) == []


def digest(location: Location) -> str:
    from conduit_dagster.engine.catalogue import open_catalogue

    bound = open_catalogue(location.project).get("orders")
    assert bound is not None
    return bound.digest


def test_a_changed_file_restarts_its_own_pipeline_only(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location), alive=True)
    assert location.tick(SENSOR) == []
    assert location.recovery().asked == ""
    location.write("other", status="stopped")
    assert location.tick(SENSOR) == []
    assert location.recovery().asked == ""
    location.write(description="another one")
    assert location.tick(SENSOR) == []
    assert location.recovery().asked == "renew"


def test_a_file_that_says_stopped_now_stops_its_pipeline(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location), alive=True)
    location.write(status="stopped")
    assert location.tick(SENSOR) == []
    assert location.recovery().asked == "stop"


def test_a_degraded_pipeline_is_started_when_its_file_was_mended(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location))
    location.fail(error=FatalError("no", code="x.y"))
    assert location.tick(SENSOR) == []
    location.write(description="mended")
    assert len(location.tick(SENSOR)) == 1


def test_a_pipeline_that_never_ran_starts_when_asked(location: Location) -> None:
    location.write(status="stopped")
    assert location.tick(SENSOR) == []
    assert ask_start(location.store, "orders", "operator")
    (request,) = location.tick(SENSOR)
    location.launch(request)
    assert location.tick(SENSOR) == []
    location.begin(digest=digest(location), alive=True)
    assert location.recovery().asked == ""


@pytest.mark.parametrize("asked", [True, False])
def test_a_drained_pipeline_runs_again_when_asked(location: Location, asked: bool) -> None:
    location.write(trigger="available-now")
    assert len(location.tick(SENSOR)) == 1
    location.begin(digest=digest(location))
    location.end("stopped", "system")
    if asked:
        ask_start(location.store, "orders", "operator")
    assert len(location.tick(SENSOR)) == (1 if asked else 0)


def test_a_pipeline_whose_file_is_gone_is_deprovisioned_once(location: Location) -> None:
    location.write()
    location.write("other", status="stopped")
    location.begin()
    location.end("stopped", "user")
    assert location.definitions
    (location.root / "pipelines" / "other.yaml").write_text("pipelines: [")
    (location.root / "pipelines" / "orders.yaml").unlink()
    location.tick(SENSOR)
    assert "deprovisioned" not in location.events()  # the broken file may be its own
    location.write("other", status="stopped")
    location.tick(SENSOR)
    location.tick(SENSOR)
    assert location.events().count("deprovisioned") == 1
