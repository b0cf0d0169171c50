"""Lines 6 and 7 of the protocol: dead letters first, then the destinations side by side; then done, then the acks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from conduit_dagster.engine.bounded import side_by_side
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.dead_letters.archive import Archive
from conduit_dagster.engine.delivery_errors import reason, refused_letter, shown, told
from conduit_dagster.engine.delivery_progress import Shipment, as_delivery
from conduit_dagster.engine.delivery_records import DeliveryRecords
from conduit_dagster.engine.direct_sender import DirectSender
from conduit_dagster.engine.error_context import blamed
from conduit_dagster.engine.nack_window import NackWindow
from conduit_dagster.engine.offset_updates import Offsets, after_step
from conduit_dagster.engine.reads_same import reads_same
from conduit_dagster.engine.redelivery import Redelivery
from conduit_dagster.engine.refusals import Refusals
from conduit_dagster.engine.restage import Restaged
from conduit_dagster.engine.sending import Sent
from conduit_dagster.engine.source_acks import SourceAcks
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Delivery, Destination, StagedDestination, Target
from conduit_dagster.state.generations import inside
from conduit_dagster.state.lease import LeaseLost
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import Decision, LateLetter, Plan, StagedDelivery
from conduit_dagster.state.store import PipelineStore


def identity(destination: Destination) -> dict[str, str | None]:
    """What a destination is, as far as a prepared step is concerned; a path in the project counts relative to it."""
    address = destination.address
    return {"plugin": destination.name, "target": address and inside(address, destination.context.root)}


def _rank(error: Exception) -> int:
    """Of several errors the one that decides: a lost lease, then a fatal one."""
    if isinstance(error, LeaseLost):
        return 0
    return 1 if isinstance(error, ConduitError) and error.fatal else 2


class Publisher:
    """Publishes prepared steps."""

    def __init__(
        self,
        pipeline: CompiledPipeline,
        store: PipelineStore,
        state: PipelineState,
        window: NackWindow,
        direct: DirectSender,
        restaged: Restaged,
        archive: Archive,
        bisect: bool,
        acks: SourceAcks,
    ) -> None:
        self._pipeline, self._store, self._state = pipeline, store, state
        self._direct, self._restaged, self._bisect, self.acks = direct, restaged, bisect, acks
        self.refusals = Refusals(pipeline, store, state, window, archive, restaged, self.publish_letter)

    def publish(self, shipments: Sequence[Shipment]) -> None:
        """Publishes each delivery under its hash. The first error is raised when all have ended."""
        open_ones = [shipment for shipment in shipments if shipment.staged.parts]
        errors: list[Exception] = []
        for shipment in open_ones:
            if shipment.consumer == DEAD_LETTERS:
                try:
                    self._one(shipment)
                except Exception as error:
                    if not shipment.decision.once:
                        raise
                    errors.append(error)  # the others' offsets have moved: they have no second chance
        errors += self._side_by_side([s for s in open_ones if s.consumer != DEAD_LETTERS])
        if errors:
            raise min(errors, key=_rank)

    def _side_by_side(self, shipments: list[Shipment]) -> list[Exception]:
        if len(shipments) < 2:
            return [error for shipment in shipments if (error := self._caught(shipment)) is not None]
        ended = side_by_side([partial(self._caught, shipment) for shipment in shipments], "publish")
        return [error for error in ended if error is not None]

    def _caught(self, shipment: Shipment) -> Exception | None:
        try:
            self._one(shipment)
        except Exception as error:  # noqa: BLE001  # all have ended before one is raised
            return error
        return None

    def _one(self, shipment: Shipment) -> None:
        reached("before-publish", self._name)
        # as it was prepared, whatever the file says now
        if shipment.decision.once:
            self._publish_once(shipment)
            return
        target = self._sending(shipment).deliver()
        reached("after-publish", self._name)
        records = shipment.staged.records - shipment.progress.refused
        self._delivered(shipment.plan, shipment.staged, records, target, self._moves(shipment))
        reached("after-delivered", self._name)

    def _sending(self, shipment: Shipment) -> Redelivery:
        return Redelivery(
            self._pipeline, self._store, self.refusals, self._direct, self.records, self._bisect, shipment
        )

    def records(self, shipment: Shipment) -> DeliveryRecords:
        """Its records one by one, each with its origin."""
        return DeliveryRecords(self._destination(shipment), shipment, self._restaged, self._name)

    # -- at-most-once -------------------------------------------------------------------------------------------

    def _publish_once(self, shipment: Shipment) -> None:
        """Positions and offsets have moved already: whatever happens here, nothing of it is sent again."""
        try:
            left = self._attempt(shipment)
        except Exception as error:  # noqa: BLE001  # raised again, without its text where the file redacts
            cause = told(error, self._node(shipment.consumer), self._pipeline.redaction)
            self._drop(shipment, shipment.staged.records, cause)
            raise cause from shown(error, self._pipeline.redaction)
        if left is not None:
            self._drop(shipment, *left)
            raise left[1]
        reached("after-publish", self._name)

    def _attempt(self, shipment: Shipment) -> tuple[int, ConduitError] | None:
        """How many records did not get there, and why; None where all did."""
        destination = self._destination(shipment)
        if isinstance(destination, StagedDestination):
            destination.publish(shipment.whole())
            return None
        total = shipment.staged.records
        sent = self._direct.send(shipment.plan, shipment.staged, 0, total, {}, False)
        if sent.error is None and not sent.nacks:
            return None
        redaction = self._pipeline.redaction
        refused = ConduitError(reason(sent.nacks[0], redaction), code=sent.nacks[0][1]) if sent.nacks else None
        cause = sent.error.as_error() if sent.error else refused
        assert cause is not None
        return total - sent.acked.handled + len(sent.nacks), cause

    def _drop(self, shipment: Shipment, records: int, cause: ConduitError) -> None:
        self._store.deliveries.dropped(shipment.plan.step, shipment.consumer, records, cause.message)
        cause.message = f"{records} records of step {shipment.plan.step} are dropped (at-most-once): {cause.message}"

    # -- after a crash ------------------------------------------------------------------------------------------

    def settle(self, shipment: Shipment) -> None:
        """Marks what a destination turned out to hold already; it is not sent again (CASES B14)."""
        target = blamed(self._node(shipment.consumer), self._destination(shipment).settled, shipment.whole())
        self._delivered(shipment.plan, shipment.staged, shipment.staged.records, target, self._moves(shipment))

    def publish_letter(self, staged: StagedDelivery, plan: Plan) -> None:
        """One dead letter that was found at publishing. Idempotent under its hash."""
        queue, target = self._pipeline.dead_letters, staged.target
        if not staged.parts:
            pass  # the queue's own processors left it out
        elif isinstance(queue, StagedDestination):
            target = self._published_letter(queue, as_delivery(staged, plan.step))
        else:
            self._send_letter(staged, plan)
        self._delivered(plan, staged, staged.records, target, {})

    def _published_letter(self, queue: StagedDestination, letter: Delivery) -> Target:
        redaction = self._pipeline.redaction
        try:
            return queue.publish(letter)
        except Exception as error:  # noqa: BLE001  # as above
            raise told(error, self._node(DEAD_LETTERS), redaction) from shown(error, redaction)

    def _refused_letter(self, sent: Sent) -> ConduitError | None:
        return refused_letter(sent, self._node(DEAD_LETTERS), self._pipeline.redaction)

    def _send_letter(self, staged: StagedDelivery, plan: Plan) -> None:
        sent = self._direct.send(plan, staged, 0, staged.records, {}, True)
        if (refused := self._refused_letter(sent)) is not None:
            raise refused

    def retargeted_letter(self, letter: LateLetter, plan: Plan) -> LateLetter:
        """The letter, onto another target where its own is lost and the settings allow it; stored before any write."""
        queue, staged = self._pipeline.dead_letters, letter.delivery
        target = blamed(self._node(DEAD_LETTERS), queue.retarget, as_delivery(staged, plan.step))
        if target is None:
            return letter
        letter = msgspec.structs.replace(letter, delivery=msgspec.structs.replace(staged, target=target))
        self._store.deliveries.retarget_letter(plan.step, letter)
        return letter

    def settle_letter(self, staged: StagedDelivery, plan: Plan) -> bool:
        """Whether the queue turned out to hold it already."""
        queue, node = self._pipeline.dead_letters, self._node(DEAD_LETTERS)
        delivery = as_delivery(staged, plan.step)
        if not blamed(node, queue.holds, delivery):
            return False
        self._delivered(plan, staged, staged.records, blamed(node, queue.settled, delivery), {})
        return True

    def _delivered(self, plan: Plan, staged: StagedDelivery, records: int, target: Target, moves: Offsets) -> None:
        self._store.deliveries.delivered(plan.step, staged.consumer, records, target, moves, staged.skip)
        self._state.delivered(staged.consumer, target)

    # -- line 7 -------------------------------------------------------------------------------------------------

    def finish(self, plan: Plan, decision: Decision, void: frozenset[str] = frozenset()) -> None:
        """Done, and only then the acks: a source is never acked ahead of its stored position."""
        reached("before-done", self._name)
        if not decision.once:
            # of a consumer that the decision does not name, or whose delivery is void, nothing was delivered: its
            # offset stays
            named = (delivery.consumer for delivery in decision.deliveries)
            names = [name for name in named if plan.is_for(name) and name not in void]
            self._store.done(plan, decision, after_step(plan, decision), names)
        reached("after-done", self._name)
        for span in plan.ranges:
            if inlet := self._acked.get(span.source):
                self.acks.ack(inlet, span.end, span.generation)
        reached("after-ack", self._name)

    @lazy_property
    def _acked(self) -> dict[str, SourceNode]:
        """By name, the inlets that are acked: to a source that is another one by now a position means nothing."""
        inlets = self._pipeline.inlets
        return {inlet.id: inlet for inlet in inlets if reads_same(self._pipeline, inlet, self._state)}

    def _moves(self, shipment: Shipment) -> Offsets:
        return after_step(shipment.plan, shipment.decision)

    def _destination(self, shipment: Shipment) -> Destination:
        return self._pipeline.consumers()[shipment.consumer]

    @property
    def _name(self) -> str:
        return self._pipeline.program.pipeline

    def _node(self, consumer: str) -> str:
        return f"{self._name}:{consumer}"
