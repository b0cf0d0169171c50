"""Waiting until a restart is due: a stop takes effect at once (CASES B10), and nothing is touched before then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.pipeline_status import PipelineStatus
from conduit_dagster.state.database import reading
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_store import RecoveryState, read

Awaited = Literal["due", "now", "stopped", "superseded"]
"""``now``: the pipeline was started by hand without waiting; ``superseded``: the restart is no longer pending."""
_LOOK = 0.25


def await_restart(
    database: sa.Engine, pipeline: str, failure: int | None, at_ns: int, longest: float, stop: StopFlag
) -> Awaited:
    """Wait until the restart is due or cancelled; return which.

    ``failure``: its number in the store; None if the store has no record of it. ``longest``: seconds after which the
    restart is due regardless of the wall clock: a clock that is set back must not stretch the wait.
    """
    end = time.monotonic() + longest

    def left() -> float:
        return min(end - time.monotonic(), (at_ns - time.time_ns()) / 1e9)

    def instead() -> Awaited | None:
        return None if failure is None else _otherwise(_look(database, pipeline), failure)

    return _await(left, instead, stop)


def await_tick(database: sa.Engine, pipeline: str, at: float, stop: StopFlag) -> Awaited:
    """Wait between two runs of a timed pipeline, which is stopped meanwhile. ``at``: seconds since the epoch."""

    def instead() -> Awaited | None:
        state = _look(database, pipeline)
        if state is not None and state.asked == "start":
            return "now"
        return "superseded" if _stopped_by_user(database, pipeline) else None

    return _await(lambda: at - time.time(), instead, stop)


def _await(left: Callable[[], float], instead: Callable[[], Awaited | None], stop: StopFlag) -> Awaited:
    while True:
        seconds = left()
        if other := instead():
            return other
        if stop.wait(max(0.0, min(seconds, _LOOK))):
            return "stopped"
        if seconds <= _LOOK:
            return "due"


def _stopped_by_user(database: sa.Engine, pipeline: str) -> bool:
    try:
        row = pipeline_rows(database).get(pipeline)
    except SQLAlchemyError:
        return False
    return row is not None and (row["status"], row["reason"]) == (PipelineStatus.STOPPED, "user")


def _look(database: sa.Engine, pipeline: str) -> RecoveryState | None:
    try:
        with reading(database) as connection:
            return read(connection, pipeline)
    except SQLAlchemyError:
        return None  # the start itself will report that the store is unreachable


def _otherwise(state: RecoveryState | None, failure: int) -> Awaited | None:
    if state is None:
        return None
    if state.failure != failure or not state.restart_at_ns:
        return "superseded"
    if state.asked == "start":
        return "now"
    return "stopped" if state.stop_asked else None
