"""Sensors that a user evaluates by hand, as with *Test sensor* in Dagster's UI: it shows what a tick would do."""

from __future__ import annotations

import dagster as dg
import pytest
from lab.sensors_lab import FILES, Location

RECOVERY, LIFECYCLE = "conduit_recovery", "conduit_lifecycle"


def by_hand(location: Location, sensor: str) -> tuple[list[str], str]:
    """Return the jobs that it would launch, and why it launches none."""
    evaluated = location.evaluate(sensor)
    assert not evaluated.asset_events
    return [request.job_name or "" for request in evaluated.run_requests or []], evaluated.skip_message or ""


def test_what_a_tick_would_launch_is_shown_and_left_to_it(location: Location) -> None:
    """Also where it is evaluated in another code location than the daemon's, as by Dagster's command."""
    location.write()
    assert by_hand(location.named("shell"), LIFECYCLE) == (["orders"], "")
    assert len(location.named("conduit").tick(LIFECYCLE)) == 1


def test_a_run_that_died_is_not_counted(location: Location) -> None:
    location.write()
    location.begin()
    launched, why = by_hand(location, RECOVERY)
    assert (launched, location.status(), location.events()[-1]) == ([], ("running", ""), "started")
    assert "a tick would count run r1 as a failure of orders" in why
    location.tick()
    assert location.status() == ("recovering", "")
    assert location.evaluated(dg.AssetKey(["orders", "acks"]), "status") == [False]


@pytest.mark.parametrize(("status", "would"), [("running", "renew"), ("stopped", "stop")])
def test_a_run_whose_file_changed_goes_on(location: Location, status: str, would: str) -> None:
    """With the sensor off, nothing would start it again."""
    location.write()
    location.begin(digest="another", alive=True)
    location.write(status=status)
    assert f"a tick would {would} the run of orders" in by_hand(location, LIFECYCLE)[1]
    assert location.recovery().asked == ""


def test_the_check_of_a_file_that_changed_is_left_to_the_next_tick(location: Location) -> None:
    location.write()
    (location.root / "pipelines" / "bad.yaml").write_text("pipelines: [")
    by_hand(location, LIFECYCLE)
    location.tick(LIFECYCLE)
    assert location.evaluated(FILES, "no_broken_files") == [False]
