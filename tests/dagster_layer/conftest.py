"""A project in a temporary folder for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import SETTINGS, Folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Folder(tmp_path, instance)


@pytest.fixture
def connected_folder(folder: Folder, connect_server: Any) -> Folder:
    """The same, with Spark on the tests' own server for Dagster's commands. Mark tests that ask for it ``slow``."""
    folder.settings = connect_server.settings
    return folder


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
