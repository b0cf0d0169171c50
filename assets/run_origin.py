"""Why a run of a pipeline was started, by its tags, its config and its times in Dagster's run storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import dagster as dg
from dagster._core.storage.tags import SCHEDULE_NAME_TAG

from conduit_dagster.assets.names import job_name, run_op_name
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.run_status import RunOrigin
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.status_store import AutomaticStart

FAILURE_TAG = ".dagster/conduit_failure"
"""Tag of a restart: the number of the failure that it follows. The UI hides tags with this prefix."""
RESTART_TAG = ".dagster/conduit_restart_at_ns"
"""Tag of a restart: its due time, in ns. It is launched earlier, and waits."""
ATTEMPT_TAG = "conduit/attempt"
ASKED_TAG = ".dagster/conduit_asked_ns"
"""Tag of a start by a sensor or schedule: the time of the newest request at its launch, in ns; 0: there was none."""
_OFFSETS = 900.0
"""Seconds of which every time zone's offset is a multiple."""


def is_own(run: dg.DagsterRun, bound: BoundPipeline) -> bool:
    """Return whether the run is of the pipeline's own job, in which nothing else waits for it."""
    return run.job_name == job_name(bound.id)


def origin_of(context: dg.AssetExecutionContext, bound: BoundPipeline, project: Project) -> RunOrigin:
    """Return why this run was started, and how its failure is handled.

    Only the pipeline's own job is restarted: a user who materialises its assets waits for an end. A restart that was
    pending when that began comes all the same.
    """
    run, policy = context.run, Policy.of(bound.config.recovery, project.settings.recovery)
    since_ns, automatic = created_ns(context.instance, run.run_id), automatic_start(run, bound.config.status)
    origin = RunOrigin(policy, run.run_id, restart_of(run), since_ns=since_ns, automatic=automatic)
    return origin if is_own(run, bound) else replace(origin, recovery=None, pending=policy, part_of=run.job_name)


def automatic_start(run: dg.DagsterRun, status: str) -> AutomaticStart | None:
    """Return what was known when a sensor or schedule launched the run; None if a user did. ``status``: the file's."""
    asked_ns = asked_of(run)
    wanted = status == "running" or SCHEDULE_NAME_TAG in run.tags
    return None if asked_ns is None else AutomaticStart(asked_ns, wanted)


def restart_of(run: dg.DagsterRun) -> int | None:
    """Return the number of the failure that the run restarts after; None if it is no restart.

    A run that a user executes again has the tags of the first one, and a parent, which a sensor's run has not: it is
    started by hand.
    """
    return _number(run, FAILURE_TAG)


def asked_of(run: dg.DagsterRun) -> int | None:
    """Return the time of the newest request when a sensor or schedule launched the run, in ns; None if neither did."""
    return _number(run, ASKED_TAG)


def is_drain(run: dg.DagsterRun) -> bool:
    """Return whether the config of a pipeline's own run says that it drains."""
    value: Any = run.run_config
    for name in ("ops", run_op_name(run.job_name), "config", "drain"):
        # a user's YAML may leave any of them empty
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value is True


def drain_config(job: str) -> dict[str, Any]:
    """Return the config of a pipeline's own run that drains."""
    return {"ops": {run_op_name(job): {"config": {"drain": True}}}}


def _number(run: dg.DagsterRun, tag: str) -> int | None:
    number = "" if run.parent_run_id else run.tags.get(tag, "")
    return int(number) if number.isdecimal() else None


def restart_at(run: dg.DagsterRun) -> int | None:
    """Return when the run may begin, in ns; None if it may begin at once."""
    due = run.tags.get(RESTART_TAG, "")
    return int(due) if due.isdecimal() else None


def clock_ahead(instance: dg.DagsterInstance, record: dg.RunRecord) -> float | None:
    """Return by how many seconds the run storage's times are ahead of UTC; None if the run's events don't tell.

    A database whose time zone is not UTC keeps its local time there, and Dagster reads it as UTC.
    """
    created, begun = record.create_timestamp.timestamp(), record.start_time
    if begun is None or abs(created - begun) > _OFFSETS / 2:
        stats = instance.get_run_stats(record.dagster_run.run_id)
        begun = stats.enqueued_time or stats.launch_time or begun
    return None if begun is None else round((created - begun) / _OFFSETS) * _OFFSETS


def created_ns(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """Return when a run was created, in ns; None if there is no such run."""
    record = instance.get_run_record_by_id(run_id)
    if record is None:
        return None
    return round((record.create_timestamp.timestamp() - (clock_ahead(instance, record) or 0.0)) * 1e9)
