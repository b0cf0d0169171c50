"""Every test of the state store runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from lab.postgres_server import PostgresServer

from conduit_dagster.state.database import open_database


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """A new, empty database on PostgreSQL, for what SQLite does not have."""
    return postgres_server.create_database()


@pytest.fixture
def database(database_url: str) -> Iterator[sa.Engine]:
    """A new state store."""
    engine = open_database(database_url)
    yield engine
    engine.dispose()
