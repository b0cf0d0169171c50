"""The environment of the kill matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.matrix.kill_round import World
from pyspark.sql import SparkSession


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession, connect_server: Any, postgres_server: Any) -> World:
    """Real servers, and a folder of its own."""
    return World(spark, connect_server, postgres_server.create_database, tmp_path)
