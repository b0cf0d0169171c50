"""Reports on behalf of a run that could not report itself: its process died, or never reached the store."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import sqlalchemy as sa

from conduit_dagster.engine.report import error_json
from conduit_dagster.engine.run_status import NO_FAILURE
from conduit_dagster.engine.stop import Reason
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.pipeline_status import PipelineStatus
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.recovery_store import write
from conduit_dagster.state.status_store import Failed, StatusStore
from conduit_dagster.state.store import PipelineStore

_LOOK_AGAIN = 0.3
"""Seconds for which an owner that is held to be dead is looked at before its lease is taken."""


def report_failure(
    database: sa.Engine, pipeline: str, run: str, error: ConduitError, policy: Policy | None
) -> Failed | None:
    """Record a failure as the run itself would have; return None if it is none, or if the pipeline is running.

    Call it only for an owner that is known to be dead or was silent for the lease's time. Raises ``TransientError``
    where the state store does not answer.
    """
    if error.code in NO_FAILURE:
        with database.begin() as connection:
            write(connection, pipeline, reported=run)
        return None
    with _in_its_place(database, pipeline, _LOOK_AGAIN) as life:
        return None if life is None else life.failed(error_json(error), policy, run, reported=True)


def end_waiting(database: sa.Engine, pipeline: str, reason: Reason, lease_seconds: float = _LOOK_AGAIN) -> bool:
    """Cancel the pending restart: the pipeline is stopped. Return False if another process runs it meanwhile.

    Raises ``TransientError`` where the state store does not answer.
    """
    with _in_its_place(database, pipeline, lease_seconds) as life:
        if life is not None:
            life.ended(PipelineStatus.STOPPED, reason)
    return life is not None


@contextmanager
def _in_its_place(database: sa.Engine, pipeline: str, lease_seconds: float) -> Generator[StatusStore | None]:
    """Yield the pipeline's status store under a lease of our own; None if its owner is alive."""
    try:
        lease = acquire(database, pipeline, lease_seconds)
    except ConduitError as error:
        if error.code != "lease.held":
            raise
        lease = None
    if lease is None:
        yield None
        return
    try:
        yield PipelineStore(database, lease).life
    finally:
        lease.release()
