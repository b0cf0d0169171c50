"""A project in a temporary folder for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster_layer.project_folder import SETTINGS, Folder

from conduit_dagster.assets import run_reporter


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Folder(tmp_path, instance)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits for what its destinations show: on a busy machine that takes longer than the usual two seconds."""
    monkeypatch.setattr(run_reporter, "_CONTENTS_SECONDS", 60.0)


@pytest.fixture
def connected(folder: Folder, connected: None) -> None:
    """Not before the folder: it removes the caller's settings."""


Evaluations = dict[str, list[bool]]


@pytest.fixture
def evaluations() -> Callable[[dg.ExecuteInProcessResult], Evaluations]:
    """The result of each check, in the order of its evaluations within a run."""

    def found(result: dg.ExecuteInProcessResult) -> Evaluations:
        outcomes: Evaluations = {}
        for event in result.get_asset_check_evaluations():
            outcomes.setdefault(event.check_name, []).append(event.passed)
        return outcomes

    return found
