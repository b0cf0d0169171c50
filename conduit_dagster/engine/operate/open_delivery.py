"""The delivery of one consumer that a stopped pipeline left open."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.delivery_progress import Shipment, after, around, past_marked, pieces, trimmed, with_marks
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.offset_updates import before_next
from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
from conduit_dagster.engine.recover import prepared, shipped
from conduit_dagster.engine.restage import DeliveryRecords
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Claim, Delivery, Destination, StagedRecord
from conduit_dagster.state.delivery_store import Offsets
from conduit_dagster.state.pipeline_state import OpenStep, PipelineState
from conduit_dagster.state.steps import Decision, DeliveryChild, StagedDelivery


@dataclass(frozen=True)
class OpenDelivery:
    """One consumer's delivery of the prepared step, and the loop that would deliver it."""

    lock: PipelineLock
    loop: StepLoop
    step: OpenStep
    shipment: Shipment

    @property
    def consumer(self) -> str:
        """Id of the consumer."""
        return self.shipment.consumer

    @property
    def node(self) -> str:
        """Node id of the consumer, for errors."""
        return self.loop.context.node(self.consumer)

    @property
    def destination(self) -> Destination:
        """Destination of the delivery."""
        return self.lock.pipeline.consumers[self.consumer]

    @property
    def is_done(self) -> bool:
        """Whether all of its records are handled."""
        return self.shipment.progress.handled >= self.shipment.staged.records

    @lazy_property
    def records(self) -> DeliveryRecords:
        """All records, in order, with origins. Runs a Spark job if the destination does not stage whole records."""
        return self.loop.publisher.records(self.shipment)

    def offsets(self, following: StagedRecord | None) -> Offsets:
        """Return the consumer's offsets if this is its next record; None means all records are handled."""
        shipment = self.shipment
        place = None if following is None else (following.source, following.ordinal)
        return before_next(shipment.plan, shipment.decision, place)


def prepared_step(state: PipelineState) -> tuple[OpenStep, Decision] | None:
    """Return the step that is prepared but not done; there is at most one."""
    return next(((step, step.decision) for step in state.open_steps if step.decision is not None), None)


def open_delivery(lock: PipelineLock, consumer: str | None, change: bool = True) -> OpenDelivery | None:
    """Return the open delivery; None if the destination already has all of it: it is then marked as delivered.

    Without ``change``, the destination is not contacted and nothing is written. Raises ``FatalError`` (``offsets.*``)
    if nothing is open.
    """
    name = chosen("consumer", consumer, _consumers(lock, consumer), lock.id)
    loop = lock.loop()
    step, decision = open_step(lock, loop.context.state)
    staged = _staged(lock, step, decision, name)
    if not change:
        opened = OpenDelivery(lock, loop, step, shipped(lock.pipeline, step, decision, staged))
        return None if opened.is_done else opened
    blamed(loop.context.node(name), lock.pipeline.consumers[name].fence, lock.store.epoch)
    others = frozenset(d.consumer for d in decision.deliveries if d.consumer != name)
    # as at the start of a run: mark deliveries that the destination already has, and rebuild lost staging
    found = prepared(loop, replace(step, delivered=others), decision)
    opened = OpenDelivery(lock, loop, step, found[0]) if found else None
    if opened is not None and opened.is_done:
        # killed after its last record, and before its end was stored
        store_end(opened)
        return None
    return opened


def store_end(opened: OpenDelivery) -> None:
    """Mark the delivery as delivered: all of its records are handled."""
    shipment, store = opened.shipment, opened.lock.store.deliveries
    store.delivered(
        shipment.plan.step, opened.consumer, shipment.delivered, shipment.staged.target, opened.offsets(None)
    )


def _consumers(lock: PipelineLock, given: str | None) -> list[str]:
    if given == DEAD_LETTERS:
        raise not_skipped(lock)
    return [destination_node.id for destination_node in lock.pipeline.outputs]


def not_skipped(lock: PipelineLock) -> FatalError:
    """Return the error for dead letters that the queue can still get."""
    return refused(
        "offsets.dead_letters",
        "dead letters are neither skipped nor sent one by one: what was refused would be lost",
        "repair the dead-letter queue and run again",
        node=node_id(lock.id, DEAD_LETTERS),
    )


def open_step(lock: PipelineLock, state: PipelineState) -> tuple[OpenStep, Decision]:
    """Return the prepared step. Raises ``FatalError`` (``offsets.no_open_step``)."""
    found = prepared_step(state)
    if found is None:
        message = f"pipeline {lock.id} has no open step: no record waits for a destination"
        raise refused(
            "offsets.no_open_step", message, f"conduit-dagster offsets list {lock.id} shows where each stands"
        )
    return found


def _staged(lock: PipelineLock, step: OpenStep, decision: Decision, consumer: str) -> StagedDelivery:
    found = next((d for d in decision.deliveries if d.consumer == consumer and d.parts), None)
    if found is None or consumer in step.delivered:
        message = f"step {step.plan.step} is done for {consumer}: none of its records waits"
        fix = f"conduit-dagster offsets list {lock.id} shows which consumer is behind"
        raise refused("offsets.nothing_open", message, fix, node=node_id(lock.id, consumer))
    return found


def require_divisible(opened: OpenDelivery) -> None:
    """Raise ``FatalError`` (``offsets.not_divisible``) if the destination accepts only whole deliveries."""
    if not opened.destination.divisible:
        raise not_divisible(opened)


def not_divisible(opened: OpenDelivery) -> FatalError:
    """Return the error for a delivery whose records can't be handled one by one."""
    return refused(
        "offsets.not_divisible",
        f"{opened.consumer} ({opened.destination.name}) takes step {opened.step.plan.step} as a whole: no single record"
        " of it is at fault",
        "correct what the error names (the disk, a right, the path) and run again",
        node=opened.node,
    )


def finish_step(opened: OpenDelivery) -> bool:
    """Finish the step as a run would (line 7) if none of its deliveries is open; return whether it did."""
    loop = opened.loop
    context = loop.context
    found = prepared_step(context.store.load())
    if found is None:
        return False
    step, decision = found
    known = context.consumers
    waiting = [d for d in decision.deliveries if d.parts and d.consumer not in step.delivered and d.consumer in known]
    if waiting or step.letters:
        return False
    loop.complete(step.plan, decision, [], time.monotonic(), step.sent, step.void)
    loop.stager.discard({delivery.consumer: delivery.staging for delivery in decision.deliveries})
    return True


CAUSE = "an operator marks its records"


class NackClaims:
    """Claims of single records as nacked; advances the shipment's progress in memory."""

    def __init__(self, opened: OpenDelivery) -> None:
        self._opened = opened
        self._shipment = opened.shipment
        self._hashes = opened.loop.context.hashes
        self.delivered = 0
        """Number of records that the destination already had."""

    def skip_to(self, wanted: int) -> None:
        """Skip every record before this place. May end after it if a bulk piece is already delivered."""
        shipment = self._shipment
        if shipment.staged.records > 1:
            self._claim_whole([DeliveryChild(0, shipment.staged.records, single=True)])
        while shipment.progress.handled < wanted:
            child = shipment.left[0]
            if child.take > 1 and not child.single:
                self.divide(child)
            else:
                self._skip(child.skip)

    def mark(self, place: int) -> None:
        """Claim one record, anywhere in the delivery, and mark it, unless the destination already has it.

        A record behind the first piece that is already delivered remains to be sent; sending it under its hash has no
        effect.
        """
        shipment = self._shipment
        if shipment.staged.records > 1 and not shipment.progress.split:
            self._claim_whole(around(DeliveryChild(0, shipment.staged.records), place))
        if not self._is_alone(place):
            return
        if not self._claim(self._hashes.delivery(shipment, DeliveryChild(place, 1)), "nacked"):
            shipment.progress = with_marks(shipment.progress, place)
        elif place == shipment.progress.handled:
            self._found(1)

    def _is_alone(self, place: int) -> bool:
        """Return whether the record is sent on its own from now on; claims the bulk piece that contains it as split."""
        shipment = self._shipment
        child = next((one for one in shipment.left if one.skip <= place < one.skip + one.take), None)
        if child is None:
            return False  # already delivered with its piece, as the mark of another record found
        if trimmed(child).take == 1 or child.single:
            return True
        if self._is_delivered(child):
            if child.skip == shipment.progress.handled:
                self._found(child.take, len(child.without))
            return False
        pending = [piece for one in shipment.left for piece in (around(one, place) if one == child else [one])]
        shipment.progress = msgspec.structs.replace(shipment.progress, pending=pending)
        return True

    def _claim_whole(self, parts: Sequence[DeliveryChild]) -> None:
        shipment = self._shipment
        if not shipment.progress.split:
            self._split(parts)
        # a frozen owner may publish the whole delivery until its hash is claimed as split
        if self._claim(shipment.whole(), "split"):
            self._found(shipment.staged.records - shipment.progress.handled)

    def divide(self, child: DeliveryChild) -> None:
        """Split the first remaining piece into single records, unless it is already delivered."""
        # claim first, then record, as the engine does: nothing of it is sent before
        if self._is_delivered(child):
            self._found(child.take, len(child.without))
        else:
            self._split([*pieces(child, bisect=False), *self._shipment.left[1:]])

    def _is_delivered(self, child: DeliveryChild) -> bool:
        return self._claim(self._hashes.delivery(self._shipment, trimmed(child)), "split")

    def _skip(self, place: int) -> None:
        shipment = self._shipment
        if self._claim(self._hashes.delivery(shipment, DeliveryChild(place, 1)), "nacked"):
            self._found(1)
        else:
            shipment.progress = after(shipment.progress, 1, refused=1)

    def _found(self, records: int, refused: int = 0) -> None:
        self.delivered += records - refused
        self._shipment.progress = past_marked(after(self._shipment.progress, records, refused))

    def _split(self, pending: Sequence[DeliveryChild]) -> None:
        shipment = self._shipment
        shipment.progress = msgspec.structs.replace(shipment.progress, pending=list(pending), split=True)
        store = self._opened.lock.store.deliveries
        store.split(shipment.plan.step, shipment.consumer, shipment.progress, CAUSE)

    def _claim(self, delivery: Delivery, state: Claim) -> bool:
        """Claim a delivery; return whether it is already delivered."""
        opened = self._opened
        return blamed(opened.node, opened.destination.claim, delivery, state) == "delivered"
