"""Two projects in one Dagster instance, whose pipelines have the same name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from lab.sensors_lab import Location

from conduit_dagster.sensors import dagster_runs


@pytest.fixture
def other(location: Location, tmp_path: Path) -> Location:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "conduit.yaml").touch()
    return Location(tmp_path / "other", location.instance)


def test_a_run_of_another_project_does_not_delay_a_start(location: Location, other: Location) -> None:
    location.write()
    other.write()
    (request,) = other.tick("conduit_lifecycle")
    other.launch(request)
    assert len(location.tick("conduit_lifecycle")) == 1


@pytest.mark.parametrize("page", [200, 1])
def test_a_run_of_another_project_does_not_delay_a_restart(
    location: Location, other: Location, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dagster_runs, "_PAGE", page)
    location.write()
    other.write()
    other.run()
    location.run(status="FAILURE")
    location.begin()
    location.fail()
    other.run()
    assert len(location.tick()) == 1


def test_a_failed_run_of_another_project_is_no_failure_here(location: Location, other: Location) -> None:
    location.write()
    other.write()
    location.begin()
    location.end("stopped", "user")
    other.run(status="FAILURE")
    location.tick()
    assert location.status() == ("stopped", "user")


def test_a_run_of_another_project_does_not_skip_a_tick(location: Location, other: Location, tmp_path: Path) -> None:
    location.write(trigger="{every: 90s}")
    other.write(trigger="{every: 90s}")
    (tmp_path / "dagster").mkdir()
    repository = location.definitions.get_repository_def()
    # a schedule opens Dagster's storage again, so it has to be on disk
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        other.instance = instance
        other.run()
        later = datetime.now(UTC) + timedelta(days=1)
        with dg.build_schedule_context(instance, later, repository_def=repository) as context:
            schedule = repository.get_schedule_def("orders__schedule")
            assert len(schedule.evaluate_tick(context).run_requests or []) == 1


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_project_in_another_place_or_with_another_store_starts_again(
    location: Location, other: Location, tmp_path: Path, is_moved: bool
) -> None:
    """Dagster launches no run of a key that it has already, and this project finds none of its earlier runs."""
    other.write()
    (request,) = other.tick("conduit_lifecycle")
    other.launch(request, "SUCCESS")
    other.begin()
    other.end("stopped", "system")
    other.store.dispose()
    (other.root / "conduit.yaml").write_text("state: {url: 'sqlite:///second.db', accept-new: true}\n")
    if is_moved:
        (other.root / "conduit.yaml").write_text("")
        other.root = other.root.rename(tmp_path / "moved")
    other.reload()
    (again,) = other.tick("conduit_lifecycle")
    assert again.run_key != request.run_key
