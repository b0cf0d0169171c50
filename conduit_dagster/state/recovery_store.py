"""Recovery state of pipelines: failures, restarts, and operators' requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from conduit_dagster.recovery.policy import FRESH, RestartHistory
from conduit_dagster.state.database import insert_if_absent, reading
from conduit_dagster.state.history import record_event
from conduit_dagster.state.tables import recoveries

Asked = Literal["", "start", "stop", "force", "renew"]
"""``renew``: stop, and begin again with the file as it is now."""
_STOPS: Final = ("stop", "force", "renew")


@dataclass(frozen=True)
class RecoveryState:
    """A pipeline's recovery row; times in ns since the epoch."""

    run: str = ""
    """The run that began last."""
    reported: str = ""
    """The last run whose failure another process reported."""
    failure: int = 0
    """Number of failures so far; it identifies the restart that follows the last one."""
    past: RestartHistory = FRESH
    restart_at_ns: int = 0
    """When the pending restart is due; 0 if none is pending."""
    cause: dict[str, Any] | None = None
    """The newest error."""
    asked: Asked = ""
    """An operator's request that has not been carried out yet."""
    asked_ns: int = 0
    digest: str = ""
    """Digest of the pipeline's file, as read by the run that began last."""

    @property
    def stop_asked(self) -> bool:
        """Whether the run was asked to end."""
        return self.asked in _STOPS


NEVER: Final = RecoveryState()
"""State of a pipeline that never ran."""


def read(connection: sa.Connection, pipeline: str) -> RecoveryState:
    """Return the pipeline's recovery state; ``NEVER`` if it has no row."""
    mine = sa.select(recoveries).where(recoveries.c.pipeline == pipeline)
    row = connection.execute(mine).mappings().one_or_none()
    return NEVER if row is None else _state(row)


def recovery_rows(engine: sa.Engine) -> dict[str, RecoveryState]:
    """Return all recovery states, by pipeline."""
    with reading(engine) as connection:
        rows = connection.execute(sa.select(recoveries)).mappings().all()
    return {row["pipeline"]: _state(row) for row in rows}


def _state(row: Any) -> RecoveryState:
    return RecoveryState(
        row["run"],
        row["reported"],
        row["failure"],
        RestartHistory(row["attempt"], tuple(json.loads(row["restarts"]))),
        row["restart_at_ns"],
        json.loads(row["cause"]) if row["cause"] else None,
        row["asked"],
        row["asked_ns"],
        row["digest"],
    )


def write(connection: sa.Connection, pipeline: str, **values: Any) -> None:
    """Update columns of the row, creating it if there is none. ``past`` and ``cause`` are passed as objects."""
    if (past := values.pop("past", None)) is not None:
        values |= {"attempt": past.attempt, "restarts": json.dumps(past.restarts)}
    if "cause" in values:
        values["cause"] = json.dumps(values["cause"]) if values["cause"] else ""
    fresh: dict[str, Any] = {
        "pipeline": pipeline, "run": "", "reported": "", "failure": 0, "attempt": 0, "restarts": "[]",
        "restart_at_ns": 0, "cause": "", "asked": "", "asked_ns": 0, "digest": "",
    }  # fmt: skip
    insert_if_absent(connection, recoveries, **fresh)
    connection.execute(sa.update(recoveries).where(recoveries.c.pipeline == pipeline).values(**values))


def ask(
    engine: sa.Engine,
    pipeline: str,
    asked: Asked,
    by: str,
    unless: Callable[[sa.Connection], bool] = lambda connection: False,
) -> bool:
    """Leave a request for the process that runs the pipeline, or will. Needs no lease: only the owner acts on it.

    Return False, leaving none, if ``unless``, evaluated in the same transaction, is true.
    """
    with engine.begin() as connection:
        if unless(connection):
            return False
        write(connection, pipeline, asked=asked, asked_ns=time.time_ns())
        record_event(connection, pipeline, "asked", to=asked, by=by)
    return True
