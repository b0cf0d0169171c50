"""As what a run of a pipeline's own job begins: somebody's, or the restart that follows a failure."""

from __future__ import annotations

import dagster as dg

from assets.names import job_name
from conduit_dagster.config.project import Project
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.engine.run_life import Circumstances
from conduit_dagster.recovery.policy import Policy

FAILURE_TAG = "conduit/failure"
"""On the run that restarts a pipeline: the number of the failure that it follows."""
RESTART_TAG = "conduit/restart_at_ns"
"""On the same run: when it is due. It is launched earlier, and waits."""
ATTEMPT_TAG = "conduit/attempt"


def circumstances(context: dg.AssetExecutionContext, bound: BoundPipeline, project: Project) -> Circumstances:
    """Only the pipeline's own job is brought back: whoever materialises its assets waits for an end."""
    run = context.run
    is_own = run.job_name == job_name(bound.id)
    policy = Policy.of(bound.config.recovery, project.settings.recovery) if is_own else None
    number = run.tags.get(FAILURE_TAG, "")
    return Circumstances(policy, run.run_id, int(number) if number.isdecimal() else None)


def restart_at(run: dg.DagsterRun) -> int | None:
    """When the run may begin, in ns; None where it may at once."""
    due = run.tags.get(RESTART_TAG, "")
    return int(due) if due.isdecimal() else None
