"""Checks of pipeline files that can't be loaded, evaluated by the lifecycle sensor."""

from __future__ import annotations

import dagster as dg
from lab.sensors_lab import FILES, Location

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
