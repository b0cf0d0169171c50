"""The history of a pipeline: one row per event of its life."""

from __future__ import annotations

import json
import time
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state.schema import history


def record_event(connection: sa.Connection, pipeline: str, event: str, **detail: Any) -> None:
    """Adds an event, in the transaction of what it tells of."""
    values = {"pipeline": pipeline, "at_ns": time.time_ns(), "event": event, "detail": json.dumps(detail)}
    connection.execute(history.insert().values(**values))
