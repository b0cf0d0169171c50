"""What a pipeline's store deletes by itself: steps and deliveries that are long done."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from conduit_dagster.state.lease import acquire
from conduit_dagster.state.steps import Decision, Plan, Range, SourceCount, StagedDelivery
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import deliveries, steps


def plan(number: int) -> Plan:
    return Plan(number, time.time_ns(), [Range("in", 1, number, number + 1, number)])


def finish(store: PipelineStore, number: int) -> None:
    delivery = StagedDelivery("out", "data", f"hash {number}", "", [], {})
    decision = Decision([], {"in": SourceCount(1)}, [delivery], "")
    store.prepare(plan(number), decision, [])
    store.done(plan(number), decision, {}, [])


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_old_steps_go_whichever_are_done(database: sa.Engine, is_cut: bool, restarts: bool) -> None:
    """A source that fails within each range makes each second step void, and may end each run."""
    lease = acquire(database, "p", 60.0)
    store = PipelineStore(database, lease)
    for number in range(1, 121, 2):
        store.plan(plan(number + 1))
        if is_cut:
            store.replan(number + 1, plan(number + 2))
            finish(store, number + 2)
        else:
            finish(store, number + 1)
            store.plan(plan(number + 2))
            finish(store, number + 2)
        if restarts:
            store = PipelineStore(database, lease)
    with database.connect() as connection:
        for table in (steps, deliveries):
            first, last = connection.execute(sa.select(sa.func.min(table.c.step), sa.func.max(table.c.step))).one()
            assert last == 121
            assert first >= 50
    lease.release()
