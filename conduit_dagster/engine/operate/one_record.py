"""``offsets step``: send exactly one record of the open step, as the engine would send it (CASES C10)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.delivery_progress import Shipment, after, trimmed
from conduit_dagster.engine.offset_updates import offset_of
from conduit_dagster.engine.operate.open_delivery import (
    NackClaims,
    OpenDelivery,
    finish_step,
    not_divisible,
    open_delivery,
    require_divisible,
    store_end,
)
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
from conduit_dagster.node_ids import node_id
from conduit_dagster.sdk import StagedRecord
from conduit_dagster.state.history import record_event
from conduit_dagster.state.steps import DeliveryChild

CAUSE = "an operator sends its records one by one"


@dataclass
class SingleRecordShipment(Shipment):
    """A shipment that sends only the records before ``upto``, one at a time."""

    upto: int = 0

    @property
    def left(self) -> list[DeliveryChild]:
        """Records before ``upto`` that are still to be sent."""
        done = self.progress.handled
        return [DeliveryChild(done, self.upto - done, single=True)] if done < self.upto else []


def step(lock: PipelineLock, consumer: str | None, dry_run: bool = False) -> dict[str, Any]:
    """Send the next record of the consumer's open delivery and move its offset; on failure nothing moves.

    A delivery that was sent in bulk is split first. The last record completes the delivery, and the last delivery the
    step, as in a run. Raises the destination's error, and ``FatalError`` (``offsets.*``).
    """
    opened = open_delivery(lock, consumer, change=not dry_run)
    if opened is None:
        return {"pipeline": lock.id, "consumer": consumer, "did": "held", "delivery_done": True, "step_done": False}
    try:
        return _Stepping(opened).run(dry_run)
    finally:
        opened.loop.restaged.discard()


class _Stepping:
    def __init__(self, opened: OpenDelivery) -> None:
        require_divisible(opened)
        self._opened = opened
        self._require_letters_first()
        self._ahead, self._record = self._next()

    def _require_letters_first(self) -> None:
        opened = self._opened
        letters = [d for d in opened.shipment.decision.deliveries if d.consumer == DEAD_LETTERS and d.parts]
        if opened.step.letters or (letters and DEAD_LETTERS not in opened.step.delivered):
            raise refused(
                "offsets.dead_letters_first",
                f"dead letters of step {opened.step.plan.step} are not written yet: they come before its other records",
                f"run it once: conduit-dagster run --once, with the file of {opened.lock.id}",
                node=node_id(opened.lock.id, DEAD_LETTERS),
            )

    def _next(self) -> tuple[int, StagedRecord]:
        """Return the number of records acked or marked out of order before the next one to send, and that record."""
        progress = self._opened.shipment.progress
        for number, record in enumerate(islice(self._opened.records, progress.handled, None)):
            place = progress.handled + number
            if place not in progress.marked and place > progress.namespaces.get(record.record.collection, -1):
                return number, record
        raise not_divisible(self._opened)

    def run(self, dry_run: bool) -> dict[str, Any]:
        if dry_run:
            return self._told("would send", False)
        shipment = self._split()
        if self._divide(shipment):
            return self._told("held", self._complete("held"))
        only = SingleRecordShipment(shipment.plan, shipment.decision, shipment.staged, shipment.progress)
        only.upto = only.progress.handled + self._ahead + 1
        before = only.progress
        try:
            self._opened.loop.publisher.redelivery(only, self._opened.records).run()
        finally:
            shipment.progress = only.progress
        if only.progress.handled == before.handled:
            # the destination reported, when the delivery was claimed as split, that a frozen owner had delivered all of
            # it
            shipment.progress = after(before, shipment.staged.records - before.handled)
            return self._told("held", self._complete("held"))
        passed = len(before.marked) - len(only.progress.marked)
        did = "refused" if only.progress.refused - passed > before.refused else "sent"
        return self._told(did, self._complete(did))

    def _split(self) -> Shipment:
        """Record the split before any record is sent, as after a bulk error."""
        shipment, total = self._opened.shipment, self._opened.shipment.staged.records
        if total > 1 and not shipment.progress.split:
            rest = DeliveryChild(shipment.progress.handled, total - shipment.progress.handled, single=True)
            shipment.progress = msgspec.structs.replace(shipment.progress, pending=[rest], split=True)
            store = self._opened.lock.store.deliveries
            store.split(shipment.plan.step, shipment.consumer, shipment.progress, CAUSE)
        return shipment

    def _divide(self, shipment: Shipment) -> bool:
        """Claim the piece that holds the next record, if it was sent in bulk; return whether it is already delivered.

        It may have been published right before a crash, or a frozen owner may publish it later.
        """
        first = shipment.left[0]
        if not shipment.progress.split or first.single or trimmed(first).take <= 1:
            return False
        NackClaims(self._opened).divide(first)
        handled = shipment.progress.handled
        if handled == first.skip:
            return False
        following = next((record for number, record in enumerate(self._opened.records) if number == handled), None)
        offsets = self._opened.offsets(following)
        self._opened.lock.store.deliveries.progress(shipment.plan.step, shipment.consumer, shipment.progress, offsets)
        return True

    def _complete(self, did: str) -> bool:
        """End the delivery if this was its last record; return whether that completed the step."""
        opened, shipment = self._opened, self._opened.shipment
        lock, plan = opened.lock, shipment.plan
        detail = {"by": lock.by, "consumer": opened.consumer, "step": plan.step, "offset": self._offset, "did": did}
        lock.store.transactions.run(lambda connection: record_event(connection, lock.id, "stepped", **detail))
        if not opened.is_done:
            return False
        store_end(opened)
        return finish_step(opened)

    @property
    def _offset(self) -> int:
        return offset_of(self._opened.shipment.plan, self._record.source, self._record.ordinal)

    def _told(self, did: str, finished: bool) -> dict[str, Any]:
        shipment = self._opened.shipment
        return {
            "pipeline": self._opened.lock.id,
            "consumer": self._opened.consumer,
            "did": did,
            "step": shipment.plan.step,
            "source": self._record.source,
            "offset": self._offset,
            "handled": shipment.progress.handled,
            "records": shipment.staged.records,
            "delivery_done": self._opened.is_done,
            "step_done": finished,
        }
