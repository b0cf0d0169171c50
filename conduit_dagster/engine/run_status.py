"""Status of a run in the state store, from its start to its end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.report import PendingRestart, RunProgress, RunResult, StepReport, error_json
from conduit_dagster.engine.stop import Reason
from conduit_dagster.recovery.classify import blame
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.recovery.policy import FRESH, PipelineStatus, Policy, RestartHistory, Wait, decide
from conduit_dagster.spark.jobs import JobCancelled
from conduit_dagster.state.database import reading, unreachable
from conduit_dagster.state.lease import LeaseLost, acquire
from conduit_dagster.state.recovery_state import Asked, RecoveryState, pass_over, recovery_state, withdraw_start
from conduit_dagster.state.status_store import AutomaticStart, Failed, RunStart, StatusStore
from conduit_dagster.state.store import PipelineStore

if TYPE_CHECKING:
    import sqlalchemy as sa

    from conduit_dagster.engine.stop import StopFlag


AWAY = "the state store does not answer"
NO_FAILURE = ("lease.held", "lease.lost")
"""Codes that concern a run and not its pipeline: another run has it."""
ONCE = "once-"
"""Beginning of the ids of runs that ``run --once`` makes: they only drain."""
log = structlog.get_logger("conduit.engine")


@dataclass(frozen=True)
class RunOrigin:
    """Why a run was started, and how its failure is handled."""

    recovery: Policy | None = None
    """None: a failure is final, but see ``pending``."""
    run: str = ""
    """The run's id in the history."""
    restart: int | None = None
    """Number of the failure after which this run is the restart; None if it was started on request."""
    past: RestartHistory = FRESH
    """The restarts before this one; overridden by the store's own count if the store knows the failure."""
    since_ns: int | None = None
    """When it was launched, or began to take the lease: a stop that was requested later ends it."""
    automatic: AutomaticStart | None = None
    """None: a user launched it."""
    part_of: str = ""
    """Name of the Dagster job whose run this is a part of; empty if the run is the pipeline's own."""
    pending: Policy | None = None
    """Of a run without recovery: how its failure is handled where it takes the place of a pending restart."""


WITHOUT_RECOVERY = RunOrigin()
"""A run without recovery."""


class RunStatusWriter:
    """Begins and ends one run of one pipeline under its lease."""

    def __init__(self, store: PipelineStore, origin: RunOrigin, stop: StopFlag, progress: RunProgress) -> None:
        self._id, self._store, self._origin, self._stop, self.progress = store.pipeline, store, origin, stop, progress
        self._state = RecoveryState(past=origin.past)
        self._recovering = False
        self._began = 0.0
        """When the run began, on the monotonic clock."""
        self.failed_step: int | None = None
        """The step that failed, if any; later steps that were staged ahead end with the run."""

    def begin(self, file: str, digest: str, drains: bool = False) -> bool:
        """Record the start; return False if this run is no longer wanted: a restart, or one that was stopped meanwhile.

        ``drains``: it only drains the sources by hand.
        """
        origin = self._origin
        past, since, automatic = origin.past, origin.since_ns, origin.automatic
        takes_over = origin.recovery is None and origin.pending is not None
        start = RunStart(origin.run, file, digest, origin.restart, past, drains, since, automatic, takes_over)
        state = self._store.status.begin(start)
        if state is None:
            return False
        self._state, self._recovering, self._began = state, state.past.attempt > 0, time.monotonic()
        return True

    def step_done(self, step: StepReport) -> None:
        """Note that a step is done: the first record that is acked end to end ends a recovery."""
        if self._recovering and step.is_acked and any(count.read > count.nacked for count in step.sources.values()):
            self._recovered()

    def end_recovery(self) -> None:
        """End a recovery after a window without an error. Call it periodically."""
        policy = self._origin.recovery
        # on the monotonic clock: one that is set back must not keep the pipeline recovering
        if self._recovering and policy is not None and time.monotonic() - self._began >= policy.window:
            self._recovered()

    def _recovered(self) -> None:
        self._store.status.recovered(self._state.past.attempt)
        self._recovering = False

    # -- the end --------------------------------------------------------------------------------------------------

    def superseded(self) -> RunResult:
        """Return the result of a run that is no longer wanted."""
        log.info("the run is no longer wanted: it was stopped, or restarted already", pipeline=self._id)
        return RunResult(self._id, PipelineStatus.STOPPED, "", None, self.progress)

    def stopped(self, has_more: bool = False) -> RunResult:
        """Record a stop without an error. ``has_more``: if the system stopped it, it is to be started again."""
        if self._stop.forced:
            return self._end(PipelineStatus.DEGRADED, "user", _forced_stop())
        if self._stop.requested:
            resumes = has_more and self._stop.reason == "system"
            return self._end(PipelineStatus.STOPPED, self._stop.reason, None, "start" if resumes else "")
        ended = self._end(PipelineStatus.STOPPED, "system", None)
        return replace(ended, drained=ended.status == PipelineStatus.STOPPED)

    def failed(self, error: Exception) -> RunResult:
        """Record the error that ended the run, and return its result."""
        if isinstance(error, LeaseLost):
            return RunResult(self._id, PipelineStatus.RUNNING, "", error, self.progress)  # another process now runs it
        if isinstance(error, JobCancelled) and self._stop.requested:
            return self.stopped()
        return self._failed(self._known(error))

    def _known(self, error: Exception) -> ConduitError:
        if isinstance(error, ConduitError):
            return error
        if isinstance(error, SQLAlchemyError):
            return unreachable(self._store.engine, error, AWAY)
        unforeseen = blame(error, self._id)
        unforeseen.add_note("".join(traceback.format_exception(error)))
        return unforeseen

    def _failed(self, error: ConduitError) -> RunResult:
        origin = self._origin
        try:
            void = self._store.voiding(self._cut)
            failed = self._store.status.failed(error_json(error), self._policy, origin.run, void)
        except LeaseLost as lost:
            # any error here came after the takeover, or because of it
            return RunResult(self._id, PipelineStatus.RUNNING, "", lost, self.progress)
        except (ConduitError, SQLAlchemyError) as lost:
            log.warning("the failure could not be recorded", pipeline=self._id, cause=str(lost))
            if isinstance(lost, FatalError):
                error = lost  # the lost store is why the run failed, and no restart helps
            return unrecorded(self._id, error, origin.recovery, self._state.past, self.progress)
        restart = None if failed.wait is None else PendingRestart.of(failed.wait, failed.failure)
        return RunResult(self._id, failed.status, "", error, self.progress, restart)

    @property
    def _policy(self) -> Policy | None:
        """How a failure is handled. Only a run that took the place of a pending restart began with a count of them."""
        origin = self._origin
        return origin.recovery or (origin.pending if self._state.past.attempt else None)

    @property
    def _cut(self) -> int | None:
        return None if self.failed_step is None else self.failed_step + 1

    def hung(self, where: str) -> tuple[RunResult, Callable[[sa.Connection], None]]:
        """Return the result of a run whose stop exceeds its timeout, and the part of a transaction that records it."""
        by_force = self._stop.forced
        status, reason = (PipelineStatus.DEGRADED, "user") if by_force else (PipelineStatus.STOPPED, self._stop.reason)
        cause = _forced_stop() if by_force else None
        log.warning("a stop took longer than the shutdown timeout", pipeline=self._id, still_in=where)
        told = None if cause is None else error_json(cause)
        last = self._store.status.abandoned(status, reason, told, where)
        return RunResult(self._id, status, reason, cause, self.progress, None, where), last

    def _end(self, status: PipelineStatus, reason: str, error: ConduitError | None, asked: Asked = "") -> RunResult:
        told = None if error is None else error_json(error)
        try:
            self._store.status.ended(status, reason, told, self._store.voiding(self._cut), asked)
        except LeaseLost as lost:
            return RunResult(self._id, PipelineStatus.RUNNING, "", lost, self.progress)
        except FatalError as lost:
            return RunResult(self._id, PipelineStatus.DEGRADED, "", lost, self.progress)
        except (ConduitError, SQLAlchemyError) as lost:
            log.warning("the last status could not be written", pipeline=self._id, cause=str(lost))
        return RunResult(self._id, status, reason, error, self.progress)


def _forced_stop() -> FatalError:
    return FatalError(
        "the pipeline was stopped by force; what was not prepared is read again at the next start",
        code="pipeline.forced_stop",
        fix="run it again when you are ready",
    )


def unrecorded(
    pipeline: str, error: ConduitError, policy: Policy | None, past: RestartHistory, progress: RunProgress
) -> RunResult:
    """Return the result of a failure that could not be stored; the caller keeps the restart count meanwhile."""
    if error.code in NO_FAILURE:
        return RunResult(pipeline, PipelineStatus.RUNNING, "", error, progress)
    decision = None if policy is None or error.fatal else decide(policy, past, time.time_ns())
    if isinstance(decision, Wait):
        return RunResult(pipeline, PipelineStatus.RECOVERING, "", error, progress, PendingRestart.of(decision, None))
    return RunResult(pipeline, PipelineStatus.DEGRADED, "", error, progress)


_LOOK_AGAIN = 0.3
"""Seconds to watch an owner presumed dead before its lease is taken."""


@dataclass(frozen=True)
class RunDeath:
    """End of a run that could not report it itself."""

    run: str
    error: ConduitError
    epoch: int | None = None
    """Epoch of the owner that was found dead; None: whichever is in the store."""
    digest: str | None = None
    """Digest of the file with which it failed to begin, empty if that had errors; None if it has begun."""
    asked_ns: int | None = None
    """Time of the newest request when a sensor or a schedule launched it."""


def report_failure(database: sa.Engine, pipeline: str, death: RunDeath, policy: Policy | None) -> Failed | None:
    """Record a failure as the run itself would have; return None if it is none, or if the pipeline is running.

    Call it only for an owner that is known to be dead, or was silent for the lease's time. Raises ``TransientError`` if
    the state store does not answer.
    """
    run, error = death.run, death.error
    if error.code in NO_FAILURE and not _is_unfinished(database, pipeline, run):
        with database.begin() as connection:
            pass_over(connection, pipeline, run, 1.0 if policy is None else policy.min_delay)
        return None
    with _in_its_place(database, pipeline, _LOOK_AGAIN, death.epoch) as status:
        if status is None:
            return None

        def also(connection: sa.Connection) -> None:
            if death.asked_ns is not None:
                withdraw_start(connection, pipeline, death.asked_ns)

        return status.failed(error_json(error), policy, run, also, reported=True, digest=death.digest)


def _is_unfinished(database: sa.Engine, pipeline: str, run: str) -> bool:
    """Return whether it is the run that began last, and has not ended: another process had the lease for a moment."""
    with reading(database) as connection:
        known = recovery_state(connection, pipeline)
    return known.run == run and known.reported != run and not known.restart_at_ns


def end_waiting(
    database: sa.Engine,
    pipeline: str,
    reason: Reason,
    lease_seconds: float = _LOOK_AGAIN,
    epoch: int | None = None,
) -> bool:
    """Cancel the pending restart: the pipeline is stopped. Return False if another process runs it meanwhile.

    ``epoch``: of the owner that was found dead. Raises ``TransientError`` if the state store does not answer.
    """
    with _in_its_place(database, pipeline, lease_seconds, epoch) as status:
        if status is not None:
            status.ended(PipelineStatus.STOPPED, reason)
    return status is not None


@contextmanager
def _in_its_place(
    database: sa.Engine, pipeline: str, lease_seconds: float, epoch: int | None
) -> Generator[StatusStore | None]:
    """Yield the pipeline's status store under our own lease; None if its owner is alive."""
    try:
        lease = acquire(database, pipeline, lease_seconds, epoch=epoch, by_command=True)
    except ConduitError as error:
        if error.code != "lease.held":
            raise
        lease = None
    if lease is None:
        yield None
        return
    try:
        yield PipelineStore(database, lease).status
    finally:
        lease.release()
