"""What others say for a run that could not say it itself: its process died, or never got as far as the store."""

from __future__ import annotations

import sqlalchemy as sa

from conduit_dagster.engine.report import error_json
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.life import Failed
from conduit_dagster.state.recoveries import write
from conduit_dagster.state.store import PipelineStore

NO_FAILURE = ("lease.held", "lease.lost", "pipeline.superseded")
"""Of a run, not of its pipeline: another run has it."""
_LOOK_AGAIN = 0.3


def report_failure(
    database: sa.Engine, pipeline: str, run: str, error: ConduitError, policy: Policy | None
) -> Failed | None:
    """Records it as the run itself would have; None where it is no failure, or where somebody runs the pipeline.

    Call it only for an owner that is known to be dead or was silent for the lease's time: it is looked at for a
    moment more, and then its lease is taken.
    """
    if error.code in NO_FAILURE:
        with database.begin() as connection:
            write(connection, pipeline, reported=run)
        return None
    try:
        lease = acquire(database, pipeline, _LOOK_AGAIN)
    except ConduitError as held:
        if held.code == "lease.held":
            return None
        raise
    try:
        return PipelineStore(database, lease).life.failed(error_json(error), policy, run, reported=True)
    finally:
        lease.release()
