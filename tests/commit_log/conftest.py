"""A log on the local disk and one in memory, each with a real state store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from lab.commit_log_lab import LogLab

from conduit_dagster.state.database import open_database


@pytest.fixture(params=["local", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogLab]:
    """The same test on both."""
    base = str(tmp_path / "log") if request.param == "local" else f"memory://{secrets.token_hex(8)}/log"
    database = open_database(f"sqlite:///{tmp_path}/state.db")
    yield LogLab(base, database)
    database.dispose()
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def local_log(new_log: Callable[[], LogLab]) -> LogLab:
    """On the local disk only, for tests that look at the files themselves."""
    return new_log()


@pytest.fixture
def new_log(tmp_path: Path) -> Iterator[Callable[[], LogLab]]:
    """Make empty logs on the local disk."""
    databases = []

    def make() -> LogLab:
        folder = tmp_path / secrets.token_hex(4)
        databases.append(open_database(f"sqlite:///{folder}/state.db"))
        return LogLab(str(folder / "log"), databases[-1])

    yield make
    for database in databases:
        database.dispose()
