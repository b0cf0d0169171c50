"""Decisions on pipelines: pure functions of their known state. The cursor decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conduit_dagster.config.delivery import TIMED
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.sensors.dagster_runs import LastRun
from conduit_dagster.sensors.known import KnownPipeline


@dataclass(frozen=True)
class Restart:
    """Launch the restart that follows a failure; the run itself waits for its due time."""

    failure: int
    attempt: int
    at_ns: int


@dataclass(frozen=True)
class Start:
    """Launch a run that is not a restart."""

    why: str


@dataclass(frozen=True)
class Report:
    """Report a run that ended or crashed without reporting it itself: it counts as a failure."""

    run_id: str
    kind: Literal["died", "never_began"]


@dataclass(frozen=True)
class Stopped:
    """Record that a user terminated a run that could not report it itself."""

    run_id: str


@dataclass(frozen=True)
class Cancelled:
    """Record in Dagster that a run has ended which is no longer wanted: it never began, and cannot report it."""

    run_id: str
    why: Literal["terminated", "called_off"]


@dataclass(frozen=True)
class StopRequest:
    """Ask the run to stop: ``stop``, or ``renew`` to start again with its current file."""

    asked: Literal["stop", "renew"]


Decision = Restart | Start | Report | Stopped | Cancelled | StopRequest | None


def recovery(known: KnownPipeline, now_ns: int, lead_ns: int) -> Decision:
    """Return the recovery sensor's decision. ``lead_ns``: how long before its due time a restart is launched.

    Exactly one restart per failure: the store numbers the failure, the run carries the number, and the store accepts it
    once (CASES B10, B11).
    """
    stored, run = known.stored, known.run
    if stored.owned or not known.file.runnable:
        return None
    state = stored.recovery
    if run is not None and _is_cancelled_for_ever(known, run, now_ns):
        return Cancelled(run.run_id, "terminated")
    is_lost = run is not None and _is_lost(known, run, now_ns)
    is_unwanted = run is not None and _is_drain_by_hand(known, run)
    if run is not None and is_lost and (is_unwanted or _is_called_off(known, run)):
        return Cancelled(run.run_id, "called_off")
    if run is not None and (is_lost or _failed_as_asked(known, run)):
        return Report(run.run_id, "never_began")
    if stored.status == PipelineStatus.RECOVERING and state.restart_at_ns:
        return _pending(known, now_ns, lead_ns)
    if stored.status in (PipelineStatus.RUNNING, PipelineStatus.RECOVERING):
        return _without_owner(known)
    # it failed before it could report to the store: no Spark, no store, a broken file
    is_attempt = run is not None and _is_an_attempt(known, run) and not is_unwanted
    if run is not None and run.failed and is_attempt and run.run_id != state.reported:
        return Report(run.run_id, "never_began")
    return None


def _pending(known: KnownPipeline, now_ns: int, lead_ns: int) -> Decision:
    state, run = known.stored.recovery, known.run
    # a run that only found the lease taken is followed by another one, for the same failure
    if run is not None and run.failure == state.failure and run.run_id != state.reported:
        return _launched(run, state.restart_at_ns, now_ns)
    # the failed run may still be ending in Dagster, but no longer holds the lease
    if run is not None and run.active and run.run_id != state.run:
        return None  # a user must start it
    if not known.file.running and known.file.trigger not in TIMED and known.file.digest != state.digest:
        return Stopped(state.run)
    left_ns = state.restart_at_ns - now_ns
    # longer than any delay: the clock was set back, which must not stretch the wait
    is_set_back = left_ns > lead_ns + known.file.policy.max_delay * 1e9
    if state.asked or (left_ns > lead_ns and not is_set_back):
        return None
    return Restart(state.failure, state.past.attempt, state.restart_at_ns)


def _launched(run: LastRun, due_ns: int, now_ns: int) -> Decision:
    """Return the decision for the restart's own run, which has not begun yet."""
    if run.cancelled:
        return Stopped(run.run_id)
    late = _is_late(run, now_ns, due_ns)
    return Report(run.run_id, "never_began") if run.failed or (run.active and late) else None


def _is_lost(known: KnownPipeline, run: LastRun, now_ns: int) -> bool:
    """Return whether a run was never launched, or its process ended before it took the lease.

    Dagster may count such a run as active for ever: nobody tells it, and without run monitoring nobody looks.
    """
    state = known.stored.recovery
    # a pending restart's own run waits until that is due
    is_pending = state.restart_at_ns > 0 and run.failure == state.failure
    is_waiting = run.active and not run.cancelled and not is_pending and run.run_id != state.run
    return is_waiting and _is_late(run, now_ns)


def _is_called_off(known: KnownPipeline, run: LastRun) -> bool:
    """Return whether the pipeline was stopped, or ran, since the run was created: it would not begin any more."""
    return run.created_ns <= known.stored.written_ns and not _was_asked_for(known, run)


def _is_drain_by_hand(known: KnownPipeline, run: LastRun) -> bool:
    """Return whether the run was only to drain what a user had stopped: nothing follows it, however it ends."""
    stored = known.stored
    is_stopped = (stored.status, stored.reason) == (PipelineStatus.STOPPED, "user") and stored.recovery.asked != "start"
    return is_stopped and run.drains and known.file.trigger == "continuous"


def _is_cancelled_for_ever(known: KnownPipeline, run: LastRun, now_ns: int) -> bool:
    """Return whether a terminated run ended before it took the lease, and Dagster still counts it as active.

    As when its process got the signal before it had a handler: every start would wait for it.
    """
    return run.active and run.cancelled and run.run_id != known.stored.recovery.run and _is_late(run, now_ns)


def _is_late(run: LastRun, now_ns: int, due_ns: int = 0) -> bool:
    return not run.queued and now_ns - max(run.created_ns, run.changed_ns, due_ns) > run.start_limit_ns


def _without_owner(known: KnownPipeline) -> Decision:
    """Return the decision for a pipeline that should be running and has no live owner."""
    state, run = known.stored.recovery, known.run
    if known.was_terminated(state.run):
        return Stopped(state.run)
    if known.stored.reason == "user":
        return Stopped(state.run)  # it only drained what a user had stopped
    if run is not None and run.active and run.run_id != state.run:
        return None  # its successor is about to start
    return Report(state.run, "died")


def lifecycle(known: KnownPipeline, now_ns: int) -> Decision:
    """Return the lifecycle sensor's decision: start pipelines with status running, and stop changed ones."""
    file, stored, run = known.file, known.stored, known.run
    if stored.owned:
        return _while_it_runs(known)
    # the last run may still be ending in Dagster: as long as a user's checks take, or for ever if it was killed there
    if run is not None and run.active and run.run_id != stored.recovery.run:
        return None
    if not file.runnable or stored.recovery.stop_asked:
        return None
    if stored.recovery.asked == "start":
        return _as_asked(known)
    if not file.running or file.trigger in TIMED or _is_settled(known):
        return None
    if stored.status == "":
        return Start("it never ran")
    if stored.reason == "user":
        return None
    by_system = (stored.status, stored.reason) == (PipelineStatus.STOPPED, "system")
    if (by_system or stored.status == PipelineStatus.DEGRADED) and file.digest != stored.recovery.digest:
        return Start("its file was changed")
    # a drained pipeline has completed its task
    if by_system and file.trigger == "continuous":
        return Start("it was stopped by the system")
    return None


def _as_asked(known: KnownPipeline) -> Decision:
    """Return the decision for a requested start, unless a run that was launched for it has ended before it began."""
    run = known.run
    if run is not None and _was_asked_for(known, run):
        if run.cancelled:
            return Stopped(run.run_id)
        if _failed_as_asked(known, run):
            return None  # the recovery sensor reports it
    return Start("an operator asked for it")


def _was_asked_for(known: KnownPipeline, run: LastRun) -> bool:
    """Return whether the run was launched for the pending request to start, which is withdrawn once a run begins."""
    return known.stored.recovery.asked == "start" and run.asked_ns == known.stored.recovery.asked_ns


def _failed_as_asked(known: KnownPipeline, run: LastRun) -> bool:
    """Return whether a requested start has failed and is not reported yet: one that found the lease taken is."""
    return run.failed and run.run_id != known.stored.recovery.reported and _was_asked_for(known, run)


def _is_settled(known: KnownPipeline) -> bool:
    """Return whether its last run ended as the file requires: cancelled before it began, failed, or drained."""
    run, state = known.run, known.stored.recovery
    if run is None or not _is_an_attempt(known, run):
        return False
    # a run that failed before it began is left to the recovery sensor; a cancelled one stays so until a start is
    # requested
    # one that only found the lease taken says nothing about the pipeline
    return (run.failed and run.run_id != state.reported) or run.cancelled


def _is_an_attempt(known: KnownPipeline, run: LastRun) -> bool:
    """Return whether the run tried to begin after the last one had ended.

    One that was created before that was refused while the pipeline ran, or is a restart that was called off: it says
    nothing about what follows.
    """
    return run.run_id != known.stored.recovery.run and run.created_ns > known.stored.written_ns


def _while_it_runs(known: KnownPipeline) -> Decision:
    file, stored = known.file, known.stored
    if stored.status != PipelineStatus.RUNNING or stored.recovery.asked or not file.runnable:
        return None
    if stored.reason == "user":
        return None  # a drain by hand ends by itself
    if not file.running and file.trigger not in TIMED and file.digest != stored.recovery.digest:
        return StopRequest("stop")
    if stored.recovery.digest and file.digest != stored.recovery.digest:
        return StopRequest("renew")
    return None
