"""Newest run of each pipeline's own job, from Dagster's run storage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
from dagster._core.events import JobFailureData, RunFailureReason

from conduit_dagster.assets.names import PROJECT_TAG, run_op_name
from conduit_dagster.assets.run_origin import asked_of, clock_ahead, drain_config, is_drain, restart_of
from conduit_dagster.assets.stopping import was_terminated
from conduit_dagster.engine.run_status import ONCE
from conduit_dagster.recovery.classify import from_dagster
from conduit_dagster.recovery.errors import ConduitError, TransientError

_START_LIMIT = 180
"""Seconds; also Dagster's default."""


@dataclass(frozen=True)
class LastRun:
    """The newest run of the pipeline's own job, or the one that began last."""

    run_id: str
    active: bool
    failed: bool
    cancelled: bool
    created_ns: int
    failure: int | None = None
    """Number of the failure that it follows, if it is a restart."""
    queued: bool = False
    """Whether it waits in Dagster's queue, for as long as the coordinator's limits say."""
    changed_ns: int = 0
    """Time of its last change of status, such as its launch from the queue."""
    asked_ns: int | None = None
    """Time of the newest request when a sensor launched it as a start, or a schedule did."""
    start_limit_ns: int = _START_LIMIT * 1_000_000_000
    """Time from its launch after which it counts as crashed if it has not begun, unless its restart is not due yet."""
    drains: bool = False
    """Whether its config says that it drains."""
    is_own: bool = True
    """False for a run of another job, which may be at work for other pipelines."""


_PAGE = 200
_FEW = 10


class Runs:
    """View of a project's runs in the run storage: the newest page in one query, other runs one by one.

    No query selects by tag where it can be avoided: Dagster would read every run that the project ever had.
    """

    def __init__(self, instance: dg.DagsterInstance, project: str) -> None:
        """``project``: value of ``PROJECT_TAG``."""
        self._instance, self._project = instance, project
        self._newest: dict[str, LastRun | None] = {}
        self._all = False
        self._ahead = 0.0

    def refresh(self) -> None:
        """Reload the newest runs."""
        records = self._instance.get_run_records(limit=_PAGE)
        self._all = len(records) < _PAGE
        self._newest = {}
        told = (clock_ahead(self._instance, record) for record in records[:_FEW])
        self._ahead = next((ahead for ahead in told if ahead is not None), 0.0)
        for record in records:
            job = record.dagster_run.job_name
            if job not in self._newest and _is_of(record, self._project):
                self._newest[job] = _last(self._instance, record, self._ahead)

    def of(self, job: str) -> LastRun | None:
        """Return the newest run of a pipeline's own job."""
        if job not in self._newest and not self._all:
            found = newest_run(self._instance, job, self._project)
            self._newest[job] = None if found is None else _last(self._instance, found, self._ahead)
        return self._newest.get(job)

    def by_id(self, job: str, run_id: str) -> LastRun | None:
        """Return a run of a pipeline, whose own job is ``job``; None if Dagster has none of this id, or no longer."""
        record = self._instance.get_run_record_by_id(run_id) if run_id else None
        if record is None:
            return None
        return replace(_last(self._instance, record, self._ahead), is_own=record.dagster_run.job_name == job)


def newest_run(instance: dg.DagsterInstance, job: str, project: str) -> dg.RunRecord | None:
    """Return the newest run of a project's job; another project of the instance may have a job of the same name."""
    newest = instance.get_run_records(dg.RunsFilter(job_name=job), limit=_FEW)
    own = _first_of(newest, project)
    if own is None and len(newest) == _FEW:
        tagged = dg.RunsFilter(job_name=job, tags={PROJECT_TAG: project})
        own = _first_of(instance.get_run_records(tagged, limit=_PAGE), project)
    return own


def _first_of(records: Iterable[dg.RunRecord], project: str) -> dg.RunRecord | None:
    return next((record for record in records if _is_of(record, project)), None)


def _is_of(record: dg.RunRecord, project: str) -> bool:
    """Return whether the run is one of a pipeline of this project.

    A run may have only the steps of a user's asset checks: executed alone, or again from their failure.
    """
    run = record.dagster_run
    steps = run.step_keys_to_execute
    if steps is None:
        moves = run.asset_check_selection is None or bool(run.asset_selection)
    else:
        moves = run_op_name(run.job_name) in steps
    return moves and run.tags.get(PROJECT_TAG) == project


def start_limit_ns(instance: dg.DagsterInstance) -> int:
    """Return the longest time that a launched run may take to begin: three minutes, or Dagster's own limit if longer,
    as where a pod has to fetch its image first."""
    return max(_START_LIMIT, instance.run_monitoring_start_timeout_seconds) * 1_000_000_000


def _last(instance: dg.DagsterInstance, record: dg.RunRecord, ahead: float) -> LastRun:
    """``ahead``: see :func:`clock_ahead`."""
    run = record.dagster_run
    terminated = was_terminated(instance, record)
    return LastRun(
        run.run_id,
        not run.is_finished,
        run.status is dg.DagsterRunStatus.FAILURE or (run.status is dg.DagsterRunStatus.CANCELED and not terminated),
        terminated,
        round((record.create_timestamp.timestamp() - ahead) * 1e9),
        restart_of(run),
        run.status is dg.DagsterRunStatus.QUEUED,
        round((record.update_timestamp.timestamp() - ahead) * 1e9),
        asked_of(run),
        start_limit_ns(instance),
        is_drain(run),
    )


LOOK = "look for what ended it: memory, the system's log"
"""What to do about a run that died, whether it is restarted or not."""
_SLOW = "look for what held up its start: memory, load; or raise start_timeout_seconds of Dagster's run monitoring"


def error_of(instance: dg.DagsterInstance, run_id: str) -> ConduitError:
    """Return the error of a run with its class, as far as it was reported; a crashed process is transient."""
    said, fix = "", LOOK
    for entry in instance.all_logs(run_id, of_type=_FAILURES):
        event = entry.dagster_event
        if event is None:
            continue
        if (told := _told(event)) is not None:
            return told
        data = event.event_specific_data
        failed = data if isinstance(data, JobFailureData) else JobFailureData(error=None)
        # what Dagster found, such as the exit code of the process
        if failed.error is None and event.message:
            said = f": {event.message}"
            fix = _SLOW if failed.failure_reason == RunFailureReason.START_TIMEOUT else LOOK
    return TransientError(f"run {run_id} ended without reporting a result{said}", code="run.died", fix=fix)


_FAILURES = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}


def _told(event: dg.DagsterEvent) -> ConduitError | None:
    """Return the error of a failed step, or of a run that failed before its step began, as without Spark."""
    if event.is_step_failure:
        data = event.step_failure_data
        about = {} if data.user_failure_data is None else data.user_failure_data.metadata
        metadata, error = {name: value.value for name, value in about.items()}, data.error
    else:
        failed = event.event_specific_data
        metadata, error = dict[str, Any](), None
        # the error of one that was interrupted says only that
        if isinstance(failed, JobFailureData) and failed.failure_reason != RunFailureReason.UNEXPECTED_TERMINATION:
            error = failed.error
    return None if error is None else from_dagster(metadata, error.cls_name, error.to_string())


def config_of(instance: dg.DagsterInstance, run_id: str, job: str, running: bool) -> dict[str, Any]:
    """Return the config of the run to repeat; empty if it no longer exists.

    A run of another job, or of ``run --once``, only drained: what follows it drains too, unless the pipeline's file
    says running (``running``).
    """
    run = instance.get_run_by_id(run_id) if run_id else None
    if run is not None and run.job_name == job:
        return dict(run.run_config)
    drained = run is not None or run_id.startswith(ONCE)
    return drain_config(job) if drained and not running else {}
