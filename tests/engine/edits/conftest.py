"""Fixtures of pipelines that are edited."""

from __future__ import annotations

import pytest
from engine.edits.tables import MakeTable, Table
from lab.postgres_server import PostgresServer


@pytest.fixture
def make_table(postgres_server: PostgresServer) -> MakeTable:
    """Create a table with these columns."""
    return lambda columns: Table.create(postgres_server, columns)
