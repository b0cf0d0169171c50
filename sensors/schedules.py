"""Timed triggers as Dagster schedules: ``cron`` unchanged, ``every`` as a check each minute."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import dagster as dg
import sqlalchemy as sa
from dagster._core.storage.tags import RUN_KEY_TAG
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.assets.names import NO_RETRIES, PROJECT_TAG, job_name, short
from conduit_dagster.assets.run_origin import ASKED_TAG, clock_ahead
from conduit_dagster.assets.stopping import was_terminated
from conduit_dagster.config.delivery import TIMED, Trigger, next_tick
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.run_status import NO_FAILURE
from conduit_dagster.processes import is_dead, is_running
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sensors.dagster_runs import error_of, newest_run
from conduit_dagster.sensors.known import CachedStore, HeartbeatMonitor
from conduit_dagster.state.database import reading
from conduit_dagster.state.launches import LaunchClaim, claim_launch
from conduit_dagster.state.recovery_state import RecoveryState, is_stopped_by_user, last_run_ended_alone, recovery_state
from conduit_dagster.state.tables import pipelines

_EACH_MINUTE = "* * * * *"
Tick = Callable[[dg.ScheduleEvaluationContext], dg.RunRequest | dg.SkipReason]


def define_schedules(bound_pipelines: list[BoundPipeline], jobs: dict[str, Any]) -> list[dg.ScheduleDefinition]:
    """Return a schedule for each timed pipeline that has a job; it is on if the file has ``status: running``."""
    timed = [bound for bound in bound_pipelines if bound.config.trigger.kind in TIMED and job_name(bound.id) in jobs]
    store = CachedStore()
    return [_schedule(bound, jobs[job_name(bound.id)], store) for bound in timed]


def _schedule(bound: BoundPipeline, job: Any, store: CachedStore) -> dg.ScheduleDefinition:
    trigger = bound.config.trigger
    running = bound.config.status == "running"
    return dg.ScheduleDefinition(
        name=f"{job_name(bound.id)}__schedule",
        job=job,
        cron_schedule=trigger.cron or _EACH_MINUTE,
        execution_timezone="UTC",
        execution_fn=_tick(bound, job, store),
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description=f"Runs pipeline {bound.id} {f'every {trigger.every:g} s' if trigger.every else 'at its time'}.",
    )


def _tick(bound: BoundPipeline, job: Any, store: CachedStore) -> Tick:
    pipeline, trigger, heartbeats = bound.id, bound.config.trigger, HeartbeatMonitor()

    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        newest = newest_run(context.instance, job.name, job.tags[PROJECT_TAG])
        now = context.scheduled_execution_time
        known = _known(bound, store, heartbeats)
        tags = {"conduit/pipeline": short(pipeline), **NO_RETRIES, **({} if known is None else known.tags)}
        request = dg.RunRequest(run_key=f"{pipeline}:{now.timestamp():.0f}", tags=tags)
        # this tick's own: the daemon was killed meanwhile, and Dagster launches it unless it is launched already
        if newest and newest.dagster_run.tags.get(RUN_KEY_TAG) == request.run_key:
            return request
        if _is_at_work(context.instance, known, newest):
            return dg.SkipReason("the previous run, or a command, is still at work")
        last = _last_created(context.instance, known, newest)
        if trigger.every is not None and last is not None and not _is_due(trigger, last, now):
            return dg.SkipReason("not due yet")
        # a start would begin its backoff anew; an overdue one is started all the same: the recovery sensor may be off
        if newest and newest.dagster_run.is_failure and known and known.recovery.restart_at_ns > time.time_ns():
            return dg.SkipReason("a restart is pending")
        if known and known.stopped_by_user and not _ended_one_run(context.instance, known):
            return dg.SkipReason(f"a user stopped it: conduit-dagster pipelines start {pipeline}")
        if not _is_claimed(bound, store, context, str(request.run_key)):
            return dg.SkipReason("another code location with this project launches it")
        return request

    return tick


class _Known(NamedTuple):
    """What the state store says of a pipeline at a tick."""

    recovery: RecoveryState
    owned: bool
    is_alive: bool
    """Whether an owner holds the lease whose process is not known to have ended."""
    is_here: bool
    """Whether that process runs on this machine, and its heart beats: a run's, or that of a command."""
    stopped_by_user: bool
    """And has not started it since."""
    ended_alone: bool
    """Whether a user ended its last run without a request to stop the pipeline."""

    @property
    def tags(self) -> dict[str, str]:
        """Tags by which a run that waits in a queue learns of a stop that was requested after its tick."""
        return {ASKED_TAG: str(self.recovery.asked_ns)}


def _known(bound: BoundPipeline, store: CachedStore, heartbeats: HeartbeatMonitor) -> _Known | None:
    """Return what the state store says; None if it does not answer: a tick does not wait for it."""
    owners = sa.select(pipelines.c.owner, pipelines.c.epoch, pipelines.c.heartbeat).filter_by(pipeline=bound.id)
    project = Project.find(Path(bound.program.root))
    try:
        with reading(store.of(project)) as connection:
            owner, *beat = connection.execute(owners).one_or_none() or ("", 0, 0)
            recovery = recovery_state(connection, bound.id)
            stopped = recovery.asked != "start" and is_stopped_by_user(connection, bound.id, recovery)
            alone = stopped and last_run_ended_alone(connection, bound.id, recovery)
        is_beating = heartbeats.since(bound.id, *beat) < project.settings.state.lease
        process = json.loads(owner) if owner else None
        if process is None:
            return _Known(recovery, False, False, False, stopped, alone)
        return _Known(recovery, True, not is_dead(process), is_running(process) and is_beating, stopped, alone)
    except (ConduitError, SQLAlchemyError):
        return None


def _is_claimed(bound: BoundPipeline, store: CachedStore, context: dg.ScheduleEvaluationContext, key: str) -> bool:
    """Claim this tick's run; return False if another code location has it. True while the store does not answer.

    The claimant is the tick, which Dagster evaluates again if its daemon was killed: no schedule is told its location.
    """
    tick = tuple(context.log_key or ())
    # an evaluation by hand, in the UI, is named by its time instead of a tick, and launches nothing
    if not tick or tick[-1] == context.scheduled_execution_time.strftime("%Y%m%d_%H%M%S"):
        return True
    wanted = LaunchClaim(key, "/".join(tick))
    try:
        database = store.of(Project.find(Path(bound.program.root)))
        return claim_launch(database, bound.id, "tick", wanted) == wanted
    except (ConduitError, SQLAlchemyError):
        return True


def _is_at_work(instance: dg.DagsterInstance, known: _Known | None, newest: dg.RunRecord | None) -> bool:
    """Return whether a run is at work: the newest one, or the one that began last, of whichever job.

    Runs that were launched after that one were refused, and have ended. Nor is the pipeline free while a command, or a
    run that is not in Dagster or no longer, holds its lease on this machine: a tick's run would be refused.
    """
    if newest and not newest.dagster_run.is_finished and not _has_left(known, newest.dagster_run.run_id):
        return True
    last = instance.get_run_by_id(known.recovery.run) if known is not None and known.is_alive else None
    return (last is not None and not last.is_finished) or (known is not None and known.is_here)


def _has_left(known: _Known | None, run: str) -> bool:
    """Return whether the run has ended its pipeline; Dagster counts one that was killed right then as active for ever.

    One that was killed earlier, the recovery sensor reports.
    """
    return known is not None and known.recovery.run == run and not known.owned


def _ended_one_run(instance: dg.DagsterInstance, known: _Known) -> bool:
    """Return whether the stop was that of one run, terminated in Dagster: its schedule goes on, as those of other jobs.

    Not if a stop of the pipeline was requested as well. A later run may never have begun, as one that was refused.
    """
    last = instance.get_run_record_by_id(known.recovery.run)
    if last is None:  # deleted since, or Dagster has another storage
        return known.ended_alone and _is_dagsters(known.recovery.run)
    if not was_terminated(instance, last):
        return False
    return known.recovery.asked_ns / 1e9 < _created(instance, last).timestamp()


def _is_dagsters(run: str) -> bool:
    """Return whether the id is that of a run of Dagster, and not of ``conduit-dagster run``."""
    try:
        return str(UUID(run)) == run
    except ValueError:
        return False


def _last_created(instance: dg.DagsterInstance, known: _Known | None, newest: dg.RunRecord | None) -> datetime | None:
    """Return when the last run was created; one that was refused, as another was at work, is none."""
    last = newest
    if known and newest and newest.dagster_run.run_id != known.recovery.run and newest.dagster_run.is_failure:
        refused = error_of(instance, newest.dagster_run.run_id).code in NO_FAILURE
        last = (instance.get_run_record_by_id(known.recovery.run) or newest) if refused else newest
    return None if last is None else _created(instance, last)


def _created(instance: dg.DagsterInstance, record: dg.RunRecord) -> datetime:
    return record.create_timestamp.astimezone(UTC) - timedelta(seconds=clock_ahead(instance, record) or 0)


_CLOCKS_APART = timedelta(minutes=10)
"""Largest difference of two machines' clocks that is not taken for a clock that was set back."""


def _is_due(trigger: Trigger, last: datetime, now: datetime) -> bool:
    if last - datetime.now(UTC) > _CLOCKS_APART:
        return True  # the clock was set back since, which must not stretch the wait
    # a run is created a moment after its tick, from which the time to the next one counts
    return next_tick(trigger, last.replace(second=0, microsecond=0)) <= now
