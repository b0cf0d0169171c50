"""Restarts of one pipeline in this process: the recovery policy without a daemon."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.config.delivery import Trigger, first_tick, tick_after_run
from conduit_dagster.engine.report import PendingRestart, RunProgress, RunResult, story_of
from conduit_dagster.engine.run_options import RunRequest
from conduit_dagster.engine.run_status import RunOrigin, end_waiting
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import run_pipeline
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.policy import FRESH, PipelineStatus
from conduit_dagster.state.database import reading
from conduit_dagster.state.lease import LeaseHeldByCommand, refusal
from conduit_dagster.state.recovery_state import RecoveryState, is_stopped_by_user, recovery_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Awaited = Literal["due", "now", "stopped", "superseded"]
"""``now``: the pipeline was started by hand without waiting; ``superseded``: the restart is no longer pending."""
_LOOK = 0.25
_HELD = 1.0
"""Seconds before another try if the lease was taken."""
_LONGEST = 60.0
"""Maximum seconds that a restart launched ahead of its time waits, whatever the clock says."""
log = structlog.get_logger("conduit.engine")


def await_restart(
    database: sa.Engine, pipeline: str, failure: int | None, at_ns: int, longest: float, stop: StopFlag
) -> Awaited:
    """Wait until the restart is due or cancelled; return which.

    ``failure``: its number in the store; None if the store has no record of it. ``longest``: seconds after which the
    restart is due regardless of the wall clock: a clock that is set back must not stretch the wait.
    """

    def instead() -> Awaited | None:
        return None if failure is None else _otherwise(_look(database, pipeline), failure)

    return _await(at_ns / 1e9, longest, instead, stop)


def await_tick(database: sa.Engine, pipeline: str, at: float, stop: StopFlag, was_stopped: bool = False) -> Awaited:
    """Wait between two runs of a timed pipeline, which is stopped meanwhile. ``at``: seconds since the epoch.

    ``was_stopped``: a user had stopped it before, which ends no wait. A clock that is set back does not stretch it.
    """

    def instead() -> Awaited | None:
        state = _look(database, pipeline)
        if state is not None and state.asked == "start":
            return "now"
        return "superseded" if not was_stopped and _stopped_by_user(database, pipeline) else None

    return _await(at, at - time.time(), instead, stop)


def _await(at: float, longest: float, instead: Callable[[], Awaited | None], stop: StopFlag) -> Awaited:
    end = time.monotonic() + longest
    while True:
        seconds = min(at - time.time(), end - time.monotonic())
        if other := instead():
            return other
        if stop.wait(max(0.0, min(seconds, _LOOK))):
            return "stopped"
        if seconds <= _LOOK:
            return "due"


def _stopped_by_user(database: sa.Engine, pipeline: str) -> bool:
    try:
        with reading(database) as connection:
            return is_stopped_by_user(connection, pipeline, recovery_state(connection, pipeline))
    except SQLAlchemyError:
        return False


def _look(database: sa.Engine, pipeline: str) -> RecoveryState | None:
    try:
        with reading(database) as connection:
            return recovery_state(connection, pipeline)
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


def _is_held(result: RunResult) -> bool:
    return result.error is not None and result.error.code == "lease.held"


class RestartLoop:
    """Runner that restarts a pipeline after each failure that the policy allows, until it ends for good."""

    def __init__(self, request: RunRequest) -> None:
        self._bound, self._database, self._options = request.bound, request.database, request.options
        self._stop, self._observe, self._on_status = request.stop, request.observe, request.on_status
        self._progress = RunProgress()

    def run(self, session: Callable[[], SparkSession]) -> RunResult:
        """Run and restart until there is no restart; return the last result, with the counts of all attempts.

        ``session`` returns a working session, a new one if needed.
        """
        origin, pending = self._options.origin, None
        result = self._begin(session, origin)
        while True:
            # an operator's command may have the lease for a moment: the restart stays due
            is_held = pending is not None and _is_held(result)
            restart = pending if is_held else result.restart
            if restart is None or origin.recovery is None:
                return result
            if not is_held:
                self._announce(result, restart)
            again_ns = time.time_ns() + round(_HELD * 1e9)
            pending, at_ns = restart, max(restart.at_ns, again_ns) if is_held else restart.at_ns
            awaited = self._await(restart.failure, at_ns, restart.delay)
            if awaited in ("stopped", "superseded"):
                return self._given_up(awaited)
            # a manual start resets the count
            failure, past = (restart.failure, restart.past) if awaited == "due" else (None, FRESH)
            origin = replace(origin, restart=failure, past=past)
            if is_held:
                result = self._again(session, origin, result)
            else:
                self._on_status(replace(result, restart=None))
                result = self._attempt(session, origin)

    def timed(self, session: Callable[[], SparkSession], trigger: Trigger) -> RunResult:
        """Run at every tick until stopped or degraded. A tick that comes during a run starts nothing."""
        at = first_tick(trigger, datetime.now(UTC)).timestamp()
        # a user's earlier stop must not prevent the first run at its time
        was_stopped = _stopped_by_user(self._database, self._bound.id)
        awaited = await_tick(self._database, self._bound.id, at, self._stop, was_stopped)
        reason = "user" if awaited == "superseded" else self._stop.reason
        result = RunResult(self._bound.id, PipelineStatus.STOPPED, reason, None, self._progress)
        has_run = False
        while awaited in ("due", "now"):
            began = time.monotonic()
            result = self.run(session)
            is_held = has_run and _is_held(result)
            has_run = True
            if is_held:
                result = replace(result, status=PipelineStatus.STOPPED, error=None)
            elif result.status != PipelineStatus.STOPPED or self._stop.requested or result.reason == "user":
                break
            at = tick_after_run(trigger, datetime.now(UTC), time.monotonic() - began).timestamp()
            awaited = await_tick(self._database, self._bound.id, at, self._stop)
        return result

    def once(self, session: Callable[[], SparkSession], at_ns: int | None) -> RunResult:
        """Run one attempt.

        The restart of a failure, which is launched ahead of its time, first waits until ``at_ns``, and ends without
        running if it is no longer wanted.
        """
        origin = self._options.origin
        if origin.restart is not None and at_ns is not None:
            awaited = self._await(origin.restart, at_ns, _LONGEST)
            if awaited in ("stopped", "superseded"):
                return self._given_up(awaited)
            if awaited == "now":
                origin = replace(origin, restart=None)
        return self._attempt(session, origin)

    def _begin(self, session: Callable[[], SparkSession], origin: RunOrigin) -> RunResult:
        """Make the first attempt, with recovery once no command holds the lease any more; a stop ends the wait."""
        origin = replace(origin, since_ns=time.time_ns())  # a stop that is asked for during the wait ends the run
        result = self._attempt(session, origin)
        if origin.recovery is None or not isinstance(result.error, LeaseHeldByCommand):
            return result
        log.warning("waiting for a command", pipeline=self._bound.id, cause=result.error.message)
        was_stopped = _stopped_by_user(self._database, self._bound.id)
        while isinstance(result.error, LeaseHeldByCommand):
            awaited = await_tick(self._database, self._bound.id, time.time() + _HELD, self._stop, was_stopped)
            if awaited in ("stopped", "superseded"):
                return self._given_up("superseded")
            result = self._again(session, origin, result)
        return result

    def _again(self, session: Callable[[], SparkSession], origin: RunOrigin, held: RunResult) -> RunResult:
        """Make another attempt, unless it would end as ``held`` did: then none begins, and listeners hear of none."""
        with suppress(ConduitError, SQLAlchemyError):  # an attempt reports what is wrong with the store
            seconds, stop = self._options.lease_seconds, self._stop
            if type(refusal(self._database, self._bound.id, seconds, lambda: stop.requested)) is type(held.error):
                return held
        return self._attempt(session, origin)

    def _attempt(self, session: Callable[[], SparkSession], origin: RunOrigin) -> RunResult:
        options = replace(self._options, origin=origin)
        ended = options.listen(self._bound, origin, self._progress)
        result = run_pipeline(self._bound, session, self._database, options, self._stop, self._observe, self._progress)
        ended(result)
        return self._told(result)

    def _told(self, result: RunResult) -> RunResult:
        """Add the story of a failure. A run that was refused because another one is active has none.

        Nor has a run that ended because of the store, or by force: querying the store might hang.
        """
        failed = result.status in (PipelineStatus.DEGRADED, PipelineStatus.RECOVERING)
        if result.error is None or not failed or result.hung or result.error.code.startswith("state."):
            return result
        strategy, acked = self._bound.config.delivery.strategy, result.progress.acked
        return replace(result, story=story_of(self._database, self._bound.id, strategy, acked, str(result.error.code)))

    def _await(self, failure: int | None, at_ns: int, longest: float) -> Awaited:
        return await_restart(self._database, self._bound.id, failure, at_ns, longest, self._stop)

    def _announce(self, result: RunResult, restart: PendingRestart) -> None:
        assert result.error is not None, "only a failure is followed by a restart"
        told = {"code": result.error.code, "cause": result.error.message, "attempt": restart.attempt}
        log.warning("failed, restarting", pipeline=self._bound.id, **told, delay=restart.delay)
        self._on_status(result)

    def _given_up(self, awaited: Awaited) -> RunResult:
        """Return the result of a restart that was cancelled while it waited; record it, unless already recorded."""
        reason = self._stop.reason if self._stop.requested else "user"
        if awaited == "stopped":
            try:
                end_waiting(self._database, self._bound.id, reason, self._options.lease_seconds)
            except (ConduitError, SQLAlchemyError) as error:
                log.warning("the last status could not be written", pipeline=self._bound.id, cause=str(error))
        return RunResult(self._bound.id, PipelineStatus.STOPPED, reason, None, self._progress)
