"""A PostgreSQL source read without a pipeline, step by step like the engine: plan, read, ack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conduit_dagster.connectors.postgres.source import PostgresSource
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions, ResumeState

_LIMIT = Limit(1_000_000, 128_000_000)


def read_alone(settings: Mapping[str, Any], root: Path) -> int:
    """Return the number of records up to the horizon; each is made and thrown away, in one process."""
    context = ConnectorContext("bench", "in", str(root), Clock())
    source, found = PostgresSource(PostgresSourceSettings.model_validate(settings), context), 0
    position, horizon = source.initial(), source.horizon()
    source.resume(ResumeState(position, None, {}))
    while (further := source.latest(position, _LIMIT, horizon)) != position:
        for split in source.split(position, further, 2):
            for block in source.read(split, ReadOptions()):
                assert isinstance(block, Block)
                found += len(block.records)
        position = further
        source.ack(position, 1)
    source.close()
    return found
