"""A database for each module of tests of the postgres connectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from lab.postgres_lab import PostgresLab
from lab.postgres_reading import PostgresReading
from lab.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> str:
    """Its URL."""
    return postgres_server.create_database()


@pytest.fixture
def lab(database: str, tmp_path: Path) -> PostgresLab:
    """Empty it at the beginning of each test."""
    made = PostgresLab(database, tmp_path)
    made.reset()
    return made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file that a file source reads."""
    return tmp_path / "app.log"


@pytest.fixture
def reading(database: str, tmp_path: Path) -> Iterator[PostgresReading]:
    """Sources of a database that is empty at the beginning of each test; their slot is dropped at the end."""
    PostgresLab(database, tmp_path).reset()
    with closing(PostgresReading(database, tmp_path)) as made:
        yield made
