"""One project loaded in two code locations of a Dagster: each run is launched by one of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from lab.sensors_lab import Location

RECOVERY, LIFECYCLE = "conduit_recovery", "conduit_lifecycle"


@pytest.fixture(params=[RECOVERY, LIFECYCLE])
def sensor(request: pytest.FixtureRequest, location: Location) -> str:
    """A sensor that has something to launch."""
    location.write()
    if request.param == RECOVERY:
        location.begin()
        location.fail()
    return request.param


def test_what_is_due_is_launched_by_one(location: Location, sensor: str) -> None:
    """Both look before the other one's run is in Dagster."""
    one, two = location.named("one"), location.named("two")
    (request,) = one.tick(sensor)
    assert two.tick(sensor) == []
    # a daemon that was killed before the launch, and is back
    assert [again.run_key for again in location.named("one").tick(sensor)] == [request.run_key]
    one.launch(request)
    assert one.tick(sensor) == two.tick(sensor) == []


def test_the_other_one_launches_what_a_location_that_is_gone_had_claimed(
    location: Location, sensor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = location.named("one"), location.named("two")
    assert len(one.tick(sensor)) == 1
    assert two.tick(sensor) == []
    monkeypatch.setattr("conduit_dagster.sensors.executor._EXPIRY", 0.0)
    assert len(two.tick(sensor)) == 1
    assert one.tick(sensor) == []  # back, and too late


def test_each_failure_has_its_own_claim(location: Location) -> None:
    location.write()
    one, two = location.named("one"), location.named("two")
    location.begin()
    location.fail()
    (request,) = one.tick(RECOVERY)
    run = one.launch(request)
    location.fail()
    location.instance.report_run_failed(run)
    assert len(two.tick(RECOVERY)) == 1
    assert one.tick(RECOVERY) == []


def test_a_tick_of_a_schedule_is_launched_by_one(location: Location, tmp_path: Path) -> None:
    location.write(trigger="{every: 90s}")
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    (tmp_path / "dagster").mkdir()
    # a schedule opens Dagster's storage again, so it has to be on disk
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:

        def launches(name: str, tick: str) -> int:
            repository = location.named(name).definitions.get_repository_def()
            mine = {"repository_name": "repository", "schedule_name": "orders__schedule", "repository_def": repository}
            log_key = ["repository", "orders__schedule", tick] if tick else None
            with dg.ScheduleEvaluationContext(instance.get_ref(), now, log_key, **mine) as context:
                return len(repository.get_schedule_def("orders__schedule").evaluate_tick(context).run_requests or [])

        assert launches("one", "") == 1  # by hand, in Dagster's UI: it launches nothing and so claims nothing
        # the second evaluation of a tick is that of a daemon that was killed meanwhile
        assert [launches("one", "1"), launches("two", "2"), launches("one", "1")] == [1, 0, 1]
