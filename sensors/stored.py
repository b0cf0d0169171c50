"""What the state store knows of all pipelines at one moment, and which owners have fallen silent."""

from __future__ import annotations

import json
import time
from typing import Any

import sqlalchemy as sa

from conduit_dagster.processes import is_dead
from conduit_dagster.state.database import reading
from conduit_dagster.state.recovery_store import NEVER, recovery_rows
from conduit_dagster.state.schema import pipelines
from sensors.known import Stored


class Silence:
    """Watches heartbeats over the ticks of one process: an owner elsewhere is dead when it was silent for long.

    Its clock is monotonic and its own: the clocks of other machines do not count (DELIVERY.md, Leases).
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}

    def since(self, pipeline: str, epoch: int, heartbeat: int) -> float:
        """Seconds for which this owner showed no heartbeat, as far as this process saw."""
        beat, now = (epoch, heartbeat), time.monotonic()
        seen = self._seen.get(pipeline)
        if seen is None or seen[0] != beat:
            self._seen[pipeline] = seen = (beat, now)
        return now - seen[1]


def stored(database: sa.Engine, silence: Silence, lease_seconds: float) -> dict[str, Stored]:
    """Every pipeline that ever ran, by id."""
    recoveries = recovery_rows(database)
    with reading(database) as connection:
        rows = connection.execute(sa.select(pipelines)).mappings().all()
    return {
        row["pipeline"]: Stored(
            row["status"] if row["next_step"] > 1 or row["pipeline"] in recoveries else "",
            row["reason"],
            _is_owned(row, silence, lease_seconds),
            recoveries.get(row["pipeline"], NEVER),
        )
        for row in rows
    }


def _is_owned(row: Any, silence: Silence, lease_seconds: float) -> bool:
    if not row["owner"] or is_dead(json.loads(row["owner"])):
        return False
    return silence.since(row["pipeline"], row["epoch"], row["heartbeat"]) < lease_seconds
