"""Transitions of a pipeline's status, for the owner of its lease: starts, failures, ends. One transaction each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from conduit_dagster.recovery.policy import FRESH, GiveUp, PipelineStatus, Policy, RestartHistory, Wait, decide
from conduit_dagster.state.history import provision, record_event, restarts_of
from conduit_dagster.state.lease import Transactions
from conduit_dagster.state.recovery_state import Asked, RecoveryState, recovery_state, write_recovery
from conduit_dagster.state.row_statements import update
from conduit_dagster.state.tables import pipelines

Error = Mapping[str, Any]
"""An error in the format of ``run --json``: code, message, node, place, fix, fatal."""


@dataclass(frozen=True)
class AutomaticStart:
    """A start that a sensor or a schedule launched; the run may begin much later, as from a queue."""

    asked_ns: int
    """Time of the newest request that was known at its launch; 0 if there was none."""
    wanted: bool = True
    """Whether the file still says ``status: running``; True for a schedule, which has a switch of its own."""


@dataclass(frozen=True)
class RunStart:
    """Identity of a run, and why it was started."""

    run: str
    """The run's id: Dagster's, or our own."""
    file: str = ""
    digest: str = ""
    restart: int | None = None
    """Number of the failure that this run restarts after; None for a requested start."""
    past: RestartHistory = FRESH
    """Initial count of a requested start: restarts that could not be recorded."""
    drains: bool = False
    """Whether it only drains the sources by hand: that is no start of a pipeline that a user stopped."""
    since_ns: int | None = None
    """When the run was launched, or began to take its lease: a stop that was requested later ends it. None: none."""
    automatic: AutomaticStart | None = None
    """None: a user launched it."""
    takes_over: bool = False
    """Whether it takes the place of a restart that is pending, with its count."""


@dataclass(frozen=True)
class Failed:
    """Decision after a failure."""

    status: PipelineStatus
    """``RECOVERING``, ``DEGRADED``, or ``STOPPED`` if a stop was requested."""
    failure: int
    wait: Wait | None
    """None if the pipeline was given up."""


class StatusStore:
    """The status of one pipeline, for the owner of its lease (reference 3, Pipeline state management)."""

    def __init__(self, transactions: Transactions, pipeline: str) -> None:
        self._transactions, self._id = transactions, pipeline

    def begin(self, start: RunStart) -> RecoveryState | None:
        """Begin the run; return None if it is a restart that is no longer wanted (CASES B10, B11).

        A requested start resets the restart count; a restart, or a run that takes the place of a pending one, continues
        it, and stays ``recovering`` until it has proved to work.
        """

        def work(connection: sa.Connection) -> RecoveryState | None:
            state = recovery_state(connection, self._id)
            if start.restart is None:
                return self._started(connection, start)
            # exactly one restart per failure, even if several processes try to start it
            if state.failure != start.restart or not state.restart_at_ns or state.stop_asked:
                return None
            values = {"run": start.run, "digest": start.digest, "restart_at_ns": 0, "asked": ""}
            write_recovery(connection, self._id, **values)
            told = {"attempt": state.past.attempt, "failure": state.failure, "run": start.run}
            self._event(connection, "restarted", **told, total=(restarts_of(connection, self._id) or 0) + 1)
            return state

        return self._transactions.run(work, **({"file": start.file} if start.file else {}))

    def _started(self, connection: sa.Connection, start: RunStart) -> RecoveryState | None:
        before = recovery_state(connection, self._id)
        past = before.past if start.takes_over and before.restart_at_ns else start.past
        fresh = {"run": start.run, "digest": start.digest, "restart_at_ns": 0, "asked": "", "past": past}
        if start.run and before.reported == start.run:
            return None  # it took too long to begin, and counts as failed: its restart takes its place
        after_launch = start.automatic is not None and start.automatic.asked_ns != before.asked_ns
        is_later = after_launch or (start.since_ns is not None and before.asked_ns > start.since_ns)
        if before.end_asked and is_later:
            # it was stopped since the launch, or while this run took the lease; an earlier request had no run to end
            self._end(connection, PipelineStatus.STOPPED, "user", None)
            return None
        if self._is_withdrawn(connection, start, before):
            return None
        # the reason outlasts the run, however that ends
        is_unasked = start.drains and before.run and before.asked != "start"
        stays_stopped = is_unasked and self._standing(connection)[1] == "user"
        write_recovery(connection, self._id, **fresh, cause=None)
        status = PipelineStatus.RECOVERING if past.attempt else PipelineStatus.RUNNING
        self._set(connection, status, "user" if stays_stopped else "")
        provision(connection, self._id, start.file, before.run == "")
        self._event(connection, "started", run=start.run)
        return recovery_state(connection, self._id)

    def _is_withdrawn(self, connection: sa.Connection, start: RunStart, before: RecoveryState) -> bool:
        """Return whether the pipeline was stopped, by a user or its file, since this start was launched."""
        if before.asked == "start":
            return False
        if start.automatic is None:
            is_later = start.since_ns is not None and before.asked_ns > start.since_ns
        else:
            is_later = before.asked_ns != start.automatic.asked_ns
        was_stopped = is_later and self._standing(connection)[1] == "user"
        return was_stopped or (start.automatic is not None and not start.automatic.wanted)

    def _standing(self, connection: sa.Connection) -> tuple[str, str]:
        """Return status and reason."""
        mine = sa.select(pipelines.c.status, pipelines.c.reason).where(pipelines.c.pipeline == self._id)
        status, reason = connection.execute(mine).one()
        return status, reason

    def _kept_reason(self, connection: sa.Connection) -> str:
        """Return ``user`` if the run only drains, by hand, what a user had stopped: it stays stopped."""
        status, reason = self._standing(connection)
        return reason if status in (PipelineStatus.RUNNING, PipelineStatus.RECOVERING) else ""

    def recovered(self, attempt: int) -> None:
        """Mark the pipeline as running: a record was acked end to end, or a window passed without an error."""

        def work(connection: sa.Connection) -> None:
            self._set(connection, PipelineStatus.RUNNING)
            self._event(connection, "recovered", attempt=attempt)

        self._transactions.run(work)

    def failed(
        self,
        error: Error,
        policy: Policy | None,
        run: str,
        also: Callable[[sa.Connection], None] = lambda connection: None,
        reported: bool = False,
        digest: str | None = None,
    ) -> Failed:
        """Decide what follows a failure and record both: a restart after a wait, giving up, or the requested stop.

        A requested renewal is fulfilled by the restart, or by the next start. ``policy`` None: no recovery. ``also``:
        further work in the same transaction. ``reported``: the run could not report its failure itself; ``digest``: of
        the file with which it could not begin.
        """
        now = time.time_ns()

        def work(connection: sa.Connection) -> Failed:
            also(connection)
            state = recovery_state(connection, self._id)
            values: dict[str, Any] = {"failure": state.failure + 1, "cause": error, "restart_at_ns": 0}
            if reported:
                values["reported"] = run
            if digest is not None:
                values["digest"] = digest
            told = {"code": error["code"], "message": error["message"], "node": error["node"], "fatal": error["fatal"]}
            self._event(connection, "failed", **told, attempt=state.past.attempt, run=run)
            if state.end_asked:
                # otherwise the pending request would hold up every later restart and start
                status = PipelineStatus.STOPPED if state.asked == "stop" else PipelineStatus.DEGRADED
                write_recovery(connection, self._id, **values)
                self._end(connection, status, "user", error)
                return Failed(status, state.failure + 1, None)
            if state.asked == "renew":
                values["asked"] = ""
            decision = _decide(error, policy, state.past, now)
            if isinstance(decision, Wait):
                values |= {"past": decision.past, "restart_at_ns": decision.at_ns}
                self._wait(connection, error, decision, state.failure + 1)
            else:
                self._give_up(connection, error, decision)
            write_recovery(connection, self._id, **values)
            wait = decision if isinstance(decision, Wait) else None
            return Failed(PipelineStatus.RECOVERING if wait else PipelineStatus.DEGRADED, state.failure + 1, wait)

        return self._transactions.run(work)

    def _wait(self, connection: sa.Connection, error: Error, wait: Wait, failure: int) -> None:
        mine = sa.select(pipelines.c.status, pipelines.c.error).where(pipelines.c.pipeline == self._id)
        status, first = connection.execute(mine).one()
        # keep the first error of an outage: later ones are often only its consequences
        self._set(
            connection,
            PipelineStatus.RECOVERING,
            error=json.loads(first) if first and status == PipelineStatus.RECOVERING else error,
        )
        told = {"attempt": wait.attempt, "delay": wait.delay, "restart_at_ns": wait.at_ns, "failure": failure}
        self._event(connection, "waiting", **told)

    def _give_up(self, connection: sa.Connection, error: Error, given_up: GiveUp | None) -> None:
        reason = {} if given_up is None else {"given_up": given_up.reason}
        self._set(connection, PipelineStatus.DEGRADED, error={**error, **reason})
        self._event(connection, "degraded", error=dict(error), **reason)

    def ended(
        self,
        status: PipelineStatus,
        reason: str = "",
        error: Error | None = None,
        also: Callable[[sa.Connection], None] = lambda connection: None,
        asked: Asked = "",
    ) -> None:
        """End the run without a failure: a stop, by force or not. Clear the pending restart and request.

        ``asked``: a request to leave for the next run.
        """

        def work(connection: sa.Connection) -> None:
            also(connection)
            stays_stopped = self._kept_reason(connection)
            self._end(connection, status, reason, error)
            if asked and not stays_stopped:
                write_recovery(connection, self._id, asked=asked, asked_ns=time.time_ns())

        self._transactions.run(work)

    def _end(
        self, connection: sa.Connection, status: PipelineStatus, reason: str, error: Error | None, **detail: Any
    ) -> None:
        self._set(connection, status, self._kept_reason(connection) or reason, error)
        write_recovery(connection, self._id, restart_at_ns=0, asked="")
        detail |= {"reason": reason} if reason else {}
        self._event(connection, status, **detail, **({"error": dict(error)} if error else {}))

    def abandoned(
        self, status: PipelineStatus, reason: str, error: Error | None, where: str
    ) -> Callable[[sa.Connection], None]:
        """Return :meth:`ended` for a hung run, as part of the transaction that fences it. ``where``: where it hangs."""
        return lambda connection: self._end(connection, status, reason, error, hung=where)

    def _set(
        self, connection: sa.Connection, status: PipelineStatus, reason: str | None = None, error: Error | None = None
    ) -> None:
        """``reason`` None: that of a drain by hand is kept."""
        reason = self._kept_reason(connection) if reason is None else reason
        values = {"status": status, "reason": reason, "error": json.dumps(dict(error)) if error else ""}
        update(connection, pipelines, {"pipeline": self._id}, values)

    def _event(self, connection: sa.Connection, event: str, **detail: Any) -> None:
        record_event(connection, self._id, event, **detail)


def _decide(error: Error, policy: Policy | None, past: RestartHistory, now_ns: int) -> Wait | GiveUp | None:
    if error["fatal"] or policy is None:
        return None
    return decide(policy, past, now_ns)
