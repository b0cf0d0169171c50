"""A project and its state store; no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from lab.support import DECODE, Lab, destination, queue, source

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.state.database import open_database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sa.Engine]:
    """A new state store."""
    engine = open_database(f"sqlite:///{tmp_path}/state.db")
    yield engine
    engine.dispose()


@pytest.fixture
def bound(tmp_path: Path) -> BoundPipeline:
    """A pipeline that reads a file of 40 bytes."""
    lab = Lab(tmp_path)
    lab.write("in.jsonl", ["123456789"] * 4)
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], **{"dead-letter-queue": queue()})
    found = lab.catalogue().get("p")
    assert found is not None
    return found
