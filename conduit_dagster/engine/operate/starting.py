"""Starting and stopping a pipeline from another process: requests in the state store, and the wait for the end."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from conduit_dagster.engine.operate.operator_errors import never_ran
from conduit_dagster.engine.run_status import end_waiting
from conduit_dagster.processes import is_dead
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.recovery.pipeline_status import PipelineStatus
from conduit_dagster.state.lease import free_silent
from conduit_dagster.state.overview import locked_row, pipeline_rows
from conduit_dagster.state.status_store import NEVER, record_request, recovery_rows, recovery_state

_LOOK = 0.1
_ENDED = (PipelineStatus.STOPPED, PipelineStatus.DEGRADED)


def ask_start(database: sa.Engine, pipeline: str, by: str, lease_seconds: float) -> bool:
    """Request a start; return False if the pipeline runs already. Watch an owner elsewhere, which may be dead.

    The lifecycle sensor serves the request, or a ``run`` that is waiting for the pipeline's restart.
    """
    free_silent(database, pipeline, lease_seconds)
    return record_request(database, pipeline, "start", by, lambda connection: _runs(connection, pipeline))


def _runs(connection: sa.Connection, pipeline: str) -> bool:
    # locked: a run that begins at this moment is the requested start, and takes the request
    row = locked_row(connection, pipeline)
    if row is None or not _is_owned(row):
        return False
    # a run that has just ended, or waits for its restart, still holds the lease for a moment
    return row["status"] not in _ENDED and not recovery_state(connection, pipeline).restart_at_ns


def stop(database: sa.Engine, pipeline: str, by: str, force: bool, lease_seconds: float, longest: float) -> bool:
    """Stop the pipeline and wait for its end; return False if it was stopped. Cancels a pending restart (CASES B10).

    ``longest``: seconds to wait for its end. Raises ``FatalError`` (``pipeline.never_ran``), ``TransientError``
    (``pipeline.stopping``: requested, but not ended yet).
    """
    row = pipeline_rows(database).get(pipeline)
    # a start that was requested, and has not begun yet, is withdrawn, even that of a pipeline that never ran
    if recovery_rows(database).get(pipeline, NEVER).asked != "start":
        if row is None:
            raise never_ran(pipeline)
        if (row["status"], row["reason"]) == (PipelineStatus.STOPPED, "user") and not _is_owned(row):
            return False
    record_request(database, pipeline, "force" if force else "stop", by)
    end = time.monotonic() + longest
    while not _is_ended(database, pipeline, lease_seconds):
        if time.monotonic() > end:
            raise TransientError(
                f"pipeline {pipeline} was asked to stop and has not ended within {longest:g} s",
                code="pipeline.stopping",
                fix="wait for the step at hand, or stop it by force: conduit-dagster pipelines stop --force",
            )
        time.sleep(_LOOK)
    return True


def _is_ended(database: sa.Engine, pipeline: str, lease_seconds: float) -> bool:
    row = pipeline_rows(database).get(pipeline)
    if row is not None and _is_owned(row) and not free_silent(database, pipeline, lease_seconds):
        return False  # its owner polls the store twice a second
    # its last owner has taken the request; without an owner, pending work ends here
    return not recovery_rows(database)[pipeline].asked or end_waiting(database, pipeline, "user", lease_seconds)


def _is_owned(row: dict[str, Any]) -> bool:
    return row["owner"] is not None and not is_dead(row["owner"])
