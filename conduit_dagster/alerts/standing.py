"""How every pipeline stands now, as far as alerts look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state.database import reading
from conduit_dagster.state.history import gone
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recoveries import NEVER, recovery_rows
from conduit_dagster.state.schema import consumers


@dataclass(frozen=True)
class Standing:
    """One pipeline at one moment."""

    pipeline: str
    status: str
    outage: str = ""
    """Names the run and the failure that ended it: another one is another outage."""
    reason: str = ""
    error: dict[str, Any] | None = None
    dead_letters: int = 0
    """In all."""


def standings(database: sa.Engine) -> list[Standing]:
    """Every pipeline that the store knows, but for those whose file is gone for good. Raises what the store raises."""
    recoveries, letters, away = recovery_rows(database), _dead_letters(database), gone(database)
    found = list[Standing]()
    for name, row in pipeline_rows(database).items():
        if name not in away:
            state = recoveries.get(name, NEVER)
            outage = f"{state.run}:{state.failure}"
            found.append(Standing(name, row["status"], outage, row["reason"], row["error"], letters.get(name, 0)))
    return found


def _dead_letters(database: sa.Engine) -> dict[str, int]:
    rows = sa.select(consumers.c.pipeline, consumers.c.delivered).where(consumers.c.kind == "dlq")
    with reading(database) as connection:
        return {row.pipeline: int(row.delivered) for row in connection.execute(rows)}
