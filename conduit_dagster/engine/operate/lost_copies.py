"""``offsets mark PIPELINE dead_letters OFFSET``: do without the queue's copies of a step that can't be rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.delivery_progress import as_delivery
from conduit_dagster.engine.offset_updates import last_offset, span_of
from conduit_dagster.engine.operate.open_delivery import OpenDelivery, finish_step, not_skipped, open_step
from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
from conduit_dagster.engine.recover import shipped
from conduit_dagster.engine.restage import is_staged
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.state.delivery_store import give_up_delivery, move_offsets
from conduit_dagster.state.history import record_event
from conduit_dagster.state.pipeline_state import OpenStep
from conduit_dagster.state.steps import Decision, StagedDelivery


def give_up_copies(lock: PipelineLock, offset: int, source: str | None = None, dry_run: bool = False) -> dict[str, Any]:
    """Count the prepared step's dead letters whose staging is lost as handled by the queue, unsent.

    ``offset`` is the step's last one. Index and archive have them still, as open letters. Raises ``FatalError``:
    ``offsets.dead_letters`` if no staging is lost, ``offsets.not_divisible`` for an earlier offset,
    ``offsets.no_open_step``.
    """
    loop = lock.loop()
    step, decision = open_step(lock, loop.context.state)
    lost = _lost(lock, step, decision)
    opened = OpenDelivery(lock, loop, step, shipped(lock.pipeline, step, decision, lost[0]))
    name = chosen("source", source, [span.source for span in step.plan.ranges], lock.id)
    _require_last(opened, name, offset)
    if not dry_run:
        blamed(opened.node, opened.destination.fence, lock.store.epoch)
        holds, plan = opened.destination.holds, step.plan
        lost = [one for one in lost if not blamed(opened.node, holds, as_delivery(one, plan.step))]
        if not lost:
            # the next run finds out, and has nothing to rebuild
            return {"pipeline": lock.id, "consumer": DEAD_LETTERS, "did": "held", "records": 0, "offsets": []}
        _end(opened, lost, name, offset)
    facts = {"pipeline": lock.id, "consumer": DEAD_LETTERS, "source": name, "step": step.plan.step}
    facts |= {"did": "given up", "records": sum(one.records for one in lost), "offsets": [offset], "delivered": 0}
    facts |= {"next": None, "delivery_done": not dry_run}
    return {**facts, "step_done": not dry_run and finish_step(opened)}


def _lost(lock: PipelineLock, step: OpenStep, decision: Decision) -> list[StagedDelivery]:
    """Return the open deliveries of dead letters whose staging is lost; those of refused records have their own."""
    late = [letter.delivery for letter in step.letters]
    own = [one for one in decision.deliveries if one.consumer == DEAD_LETTERS and one.parts]
    waiting = [*(own if DEAD_LETTERS not in step.delivered else []), *late]
    lost = [one for one in waiting if not is_staged(one)]
    if not lost:
        raise not_skipped(lock)
    return lost


def _require_last(opened: OpenDelivery, source: str, offset: int) -> None:
    plan = opened.step.plan
    last = last_offset(plan, opened.shipment.decision, source)
    if offset != last:
        raise refused(
            "offsets.not_divisible",
            f"the queue's copies of step {plan.step} are given up together, up to offset {last} of {source}",
            f"conduit-dagster offsets mark {opened.lock.id} {DEAD_LETTERS} {last} --source {source}",
            node=opened.node,
        )


def _end(opened: OpenDelivery, lost: Sequence[StagedDelivery], source: str, offset: int) -> None:
    lock, plan = opened.lock, opened.step.plan
    facts = {"records": sum(one.records for one in lost), "first": span_of(plan, source).offset, "last": offset}

    def work(connection: sa.Connection) -> None:
        for one in lost:
            give_up_delivery(connection, lock.id, plan.step, DEAD_LETTERS, one.skip)
            if not one.skip:
                move_offsets(connection, lock.id, [DEAD_LETTERS], opened.offsets(None))
        own = {"by": lock.by, "consumer": DEAD_LETTERS, "source": source, "step": plan.step}
        record_event(connection, lock.id, "marked", **own, **facts)

    lock.store.transactions.run(work)
