"""Recovery row of a pipeline: its failures, the restart that is pending, and what an operator asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from conduit_dagster.recovery.policy import FRESH, RestartHistory
from conduit_dagster.state.database import reading
from conduit_dagster.state.history import newest_event, record_event
from conduit_dagster.state.row_statements import insert_if_absent, update
from conduit_dagster.state.tables import pipelines, recoveries

Asked = Literal["", "start", "stop", "force", "renew"]
"""``renew``: stop, and start again with the current file."""
_STOPS: Final = ("stop", "force", "renew")
_ENDS: Final = ("stop", "force")
_BEGAN: Final = ("started", "restarted")
_ENDED: Final = ("stopped", "degraded")
"""Events of the history."""


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

    @property
    def end_asked(self) -> bool:
        """Whether the pipeline was asked to end, and not to start again with its current file."""
        return self.asked in _ENDS


NEVER: Final = RecoveryState()
"""State of a pipeline that never ran."""


def recovery_state(connection: sa.Connection, pipeline: str) -> RecoveryState:
    """Return the pipeline's recovery state; ``NEVER`` if it has no row."""
    mine = sa.select(recoveries).where(recoveries.c.pipeline == pipeline)
    row = connection.execute(mine).mappings().one_or_none()
    return NEVER if row is None else _state(row)


def recovery_rows(engine: sa.Engine) -> dict[str, RecoveryState]:
    """Return all recovery states, by pipeline."""
    with reading(engine) as connection:
        return recovery_states(connection)


def recovery_states(connection: sa.Connection) -> dict[str, RecoveryState]:
    """Return all recovery states, by pipeline, as part of a transaction."""
    rows = connection.execute(sa.select(recoveries)).mappings()
    return {row["pipeline"]: _state(row) for row in rows}


def is_stopped_by_user(connection: sa.Connection, pipeline: str, recovery: RecoveryState) -> bool:
    """Return whether a user stopped the pipeline, by force or not, and has only drained it by hand since.

    One that only an operator's command has worked on is not stopped. ``recovery``: its recovery state.
    """
    mine = sa.select(pipelines.c.reason).where(pipelines.c.pipeline == pipeline)
    return recovery != NEVER and connection.execute(mine).scalar_one_or_none() == "user"


def last_run_ended_alone(connection: sa.Connection, pipeline: str, recovery: RecoveryState) -> bool:
    """Return whether a user ended the run that began last, and nobody has asked the pipeline to stop since it began.

    By its history, which may have expired: False then. ``recovery``: its recovery state.
    """
    began, ended = newest_event(connection, pipeline, *_BEGAN), newest_event(connection, pipeline, *_BEGAN, *_ENDED)
    if began is None or ended is None or ended.event in _BEGAN:
        return False
    return ended.detail.get("reason") == "user" and recovery.asked_ns < began.at_ns


def never_began(row: Mapping[str, Any], recovery: RecoveryState) -> bool:
    """Return whether no run of a pipeline with this row has begun, and none was asked for.

    A command may have made its row, such as an import of a log.
    """
    return recovery == NEVER and row["step"] == 0


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


def write_recovery(connection: sa.Connection, pipeline: str, **values: Any) -> None:
    """Update columns of the row; create it if missing. ``past`` and ``cause`` are passed as objects."""
    if (past := values.pop("past", None)) is not None:
        values |= {"attempt": past.attempt, "restarts": json.dumps(past.restarts)}
    if "cause" in values:
        values["cause"] = json.dumps(values["cause"]) if values["cause"] else ""
    fresh: dict[str, Any] = {
        "pipeline": pipeline, "run": "", "reported": "", "failure": 0, "attempt": 0, "restarts": "[]",
        "restart_at_ns": 0, "cause": "", "asked": "", "asked_ns": 0, "digest": "",
    }  # fmt: skip
    insert_if_absent(connection, recoveries, **fresh)
    update(connection, recoveries, {"pipeline": pipeline}, values)


def pass_over(connection: sa.Connection, pipeline: str, run: str, delay: float) -> None:
    """Record that a run ended because another process had the lease; a pending restart waits ``delay`` s more.

    It keeps its failure's number: whichever run begins first takes it.
    """
    write_recovery(connection, pipeline, reported=run)
    due = recovery_state(connection, pipeline).restart_at_ns
    # unless a run has begun meanwhile, which takes the restart
    pending = (recoveries.c.pipeline == pipeline, recoveries.c.restart_at_ns == due, recoveries.c.restart_at_ns > 0)
    later = max(due, time.time_ns() + round(delay * 1e9))
    connection.execute(sa.update(recoveries).where(*pending).values(restart_at_ns=later))


def withdraw_start(connection: sa.Connection, pipeline: str, asked_ns: int) -> None:
    """Withdraw a request to start: the run that was launched for it could not begin."""
    request = (recoveries.c.pipeline == pipeline, recoveries.c.asked == "start", recoveries.c.asked_ns == asked_ns)
    connection.execute(sa.update(recoveries).where(*request).values(asked=""))


def record_request(
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
        write_recovery(connection, pipeline, asked=asked, asked_ns=time.time_ns())
        record_event(connection, pipeline, "asked", to=asked, by=by)
    return True
