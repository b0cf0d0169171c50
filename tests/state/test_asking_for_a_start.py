"""A requested start, beside a run that begins, continues or has just ended."""

from __future__ import annotations

import sqlalchemy as sa

from conduit_dagster.engine.operate.starting import ask_start
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.status_store import RunStart, recovery_rows
from conduit_dagster.state.store import PipelineStore


def test_a_run_that_has_ended_and_still_holds_its_lease_is_over(database: sa.Engine) -> None:
    lease = acquire(database, "p", 30.0)
    life = PipelineStore(database, lease).life
    life.begin(RunStart("first", "p.yaml"))
    assert not ask_start(database, "p", "operator")
    assert recovery_rows(database)["p"].asked == ""
    life.ended("stopped")
    assert ask_start(database, "p", "operator")
    assert recovery_rows(database)["p"].asked == "start"
    # a run that begins meanwhile is the requested start
    life.begin(RunStart("second", "p.yaml"))
    assert recovery_rows(database)["p"].asked == ""
    lease.release()
