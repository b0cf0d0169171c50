"""Events of a pipeline's history as they are stored: all of them, and nothing masked."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state.database import reading
from conduit_dagster.state.tables import history


def newest_events(engine: sa.Engine, pipeline: str, limit: int) -> list[dict[str, Any]]:
    """Return the newest events of a pipeline's history, newest first."""
    newest = sa.select(history).where(history.c.pipeline == pipeline).order_by(history.c.id.desc()).limit(limit)
    with reading(engine) as connection:
        return [
            {"at_ns": row["at_ns"], "event": row["event"], "detail": json.loads(row["detail"])}
            for row in connection.execute(newest).mappings()
        ]
