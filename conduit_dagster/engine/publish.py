"""Line 6 of the protocol: dead letters first, then the destinations side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from conduit_dagster.daemon_threads import side_by_side
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.delivery_errors import dropped_with, published, shown_cause, to_error
from conduit_dagster.engine.delivery_progress import Shipment
from conduit_dagster.engine.offset_updates import after_step
from conduit_dagster.engine.plugin_results import refused_by
from conduit_dagster.engine.redelivery import DirectRedelivery, Redelivery
from conduit_dagster.engine.refusals import Refusals
from conduit_dagster.engine.restage import DeliveryRecords, Restaged
from conduit_dagster.engine.sending import send_directly
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Destination, Rejected, StagedDestination, Target
from conduit_dagster.state.lease import LeaseLost
from conduit_dagster.state.steps import DeliveryChild


def _rank(error: Exception) -> int:
    """Return the rank of an error among several: a lost lease first, then fatal errors."""
    if isinstance(error, LeaseLost):
        return 0
    return 1 if isinstance(error, ConduitError) and error.fatal else 2


class Publisher:
    """Publisher of one pipeline's prepared steps."""

    def __init__(self, context: StepContext, refusals: Refusals, restaged: Restaged) -> None:
        self._context, self._refusals, self._restaged = context, refusals, restaged

    def publish(self, shipments: Sequence[Shipment]) -> None:
        """Publish each delivery under its hash. Raises the first error by rank, once all have ended."""
        errors: list[Exception] = []
        others: list[Shipment] = []
        for shipment in shipments:
            if not shipment.staged.parts:
                continue
            if shipment.consumer != DEAD_LETTERS:
                others.append(shipment)
            elif (error := self._caught(shipment)) is not None:
                if not shipment.decision.once:
                    raise error
                errors.append(error)  # continue: the others' offsets have moved, so they have no second chance
        errors += self._side_by_side(others)
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
        context = self._context
        reached("before-publish", context.name)
        # the strategy at prepare time, even if the file has changed
        if shipment.decision.once:
            self._publish_once(shipment)
            return
        target = self._publish(shipment)
        reached("after-publish", context.name)
        self._delivered(shipment, shipment.delivered, target)
        reached("after-delivered", context.name)

    def _publish(self, shipment: Shipment) -> Target:
        """Publish a delivery, whole if nothing of it was sent before, otherwise in pieces; return the next target."""
        destination, failed = self._destination(shipment), None
        if isinstance(destination, StagedDestination) and not (shipment.progress.split or shipment.progress.handled):
            try:
                return published(destination, shipment.whole())
            except Exception as error:  # noqa: BLE001  # whatever it is, it is classified there
                failed = error
        rest = self.redelivery(shipment)
        rest.run([] if failed is None else rest.divide(failed))
        return shipment.staged.target

    def redelivery(self, shipment: Shipment, records: DeliveryRecords | None = None) -> Redelivery:
        """Return the sender of a delivery in pieces. ``records``: its records, if they are open already."""
        kind = Redelivery if isinstance(self._destination(shipment), StagedDestination) else DirectRedelivery
        records = self.records(shipment) if records is None else records
        return kind(self._context, self._refusals, shipment, records)

    def records(self, shipment: Shipment) -> DeliveryRecords:
        """Return a reader of a delivery's records with their origins; nothing is read before the first access."""
        return DeliveryRecords(self._destination(shipment), shipment, self._restaged, self._context.name)

    # -- at-most-once -------------------------------------------------------------------------------------------

    def _publish_once(self, shipment: Shipment) -> None:
        """Publish a delivery whose positions and offsets have already moved: nothing of it is ever sent again."""
        redaction = self._context.pipeline.redaction
        try:
            left = self._attempt(shipment)
        except Exception as error:  # noqa: BLE001  # raised again, without its text where the file redacts
            cause = to_error(error, self._context.node(shipment.consumer), redaction)
            self._drop(shipment, shipment.staged.records, cause)
            raise cause from shown_cause(error, redaction)
        if left is not None:
            self._drop(shipment, *left)
            raise left[1]
        reached("after-publish", self._context.name)
        self._context.store.deliveries.published_once(shipment.plan.step, shipment.consumer)

    def _attempt(self, shipment: Shipment) -> tuple[int, ConduitError] | None:
        """Return how many records were not delivered, and why; None if all were."""
        destination, node = self._destination(shipment), self._context.node(shipment.consumer)
        redaction = self._context.pipeline.redaction
        if isinstance(destination, StagedDestination):
            try:
                published(destination, shipment.whole())
            except Rejected as error:
                first, *_ = refused_by(node, error, shipment.staged.records)
                nack = (first.place, first.nack.code, first.nack.message)
                return shipment.staged.records, dropped_with(nack, node, redaction)
            return None
        whole = DeliveryChild(0, shipment.staged.records)
        sent = send_directly(self._context, shipment.plan, shipment.staged, whole, {}, once=True)
        if sent.error is None and not sent.nacks:
            return None
        refused = dropped_with(sent.nacks[0], node, redaction) if sent.nacks else None
        cause = sent.error.as_error() if sent.error else refused
        assert cause is not None
        return whole.take - sent.received, cause

    def _drop(self, shipment: Shipment, records: int, cause: ConduitError) -> None:
        self._context.store.deliveries.dropped(shipment.plan.step, shipment.consumer, records, cause.message)
        shipment.dropped = records
        cause.message = f"{records} records of step {shipment.plan.step} are dropped (at-most-once): {cause.message}"

    # -- after a crash ------------------------------------------------------------------------------------------

    def settle(self, shipment: Shipment) -> None:
        """Mark a delivery as delivered that the destination already has; it is not sent again (CASES B14)."""
        node, destination = self._context.node(shipment.consumer), self._destination(shipment)
        self._delivered(shipment, shipment.staged.records, blamed(node, destination.settled, shipment.whole()))

    def _delivered(self, shipment: Shipment, records: int, target: Target) -> None:
        offsets = after_step(shipment.plan, shipment.decision)
        self._context.delivered(shipment.plan, shipment.staged, records, target, offsets)

    def _destination(self, shipment: Shipment) -> Destination:
        return self._context.consumers[shipment.consumer]
