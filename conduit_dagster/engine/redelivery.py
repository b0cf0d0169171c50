"""Sending of one delivery: whole, or in pieces after a bulk error and to direct destinations (DELIVERY.md)."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.acks import Acked
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.delivery_errors import is_outage, lone_error, refused_letter, shown, split_error, told
from conduit_dagster.engine.delivery_progress import (
    Shipment,
    after,
    before_marked,
    cause_of,
    parted,
    past_marked,
    pieces,
    progress_of,
    split_into,
)
from conduit_dagster.engine.delivery_records import DeliveryRecords
from conduit_dagster.engine.direct_sender import DirectSender
from conduit_dagster.engine.offset_updates import Offsets, before_next, offset_of
from conduit_dagster.engine.refusals import Refusals
from conduit_dagster.engine.sending import Sent
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.record import Nack
from conduit_dagster.recovery.classify import blame, blamed
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import AlreadyClaimed, Delivery, Destination, Rejected, StagedDestination, StagedRecord, Target
from conduit_dagster.state.steps import DeliveryChild

_LOST_REASON = Nack("delivery.nacked", "the destination refused it; its reason was lost in a crash")


class Redelivery:
    """Sender of one delivery. Pieces are sent one at a time, each after the ack of the previous one."""

    def __init__(self, context: StepContext, refusals: Refusals, shipment: Shipment, records: DeliveryRecords) -> None:
        self._context, self._refusals, self._shipment, self._records = context, refusals, shipment, records
        self._store, self._redaction = context.store, context.pipeline.redaction
        self._bisect, self._node = context.settings.bisect, context.node(shipment.consumer)

    @property
    def _destination(self) -> Destination:
        return self._context.consumers[self._shipment.consumer]

    def deliver(self) -> Target:
        """Send the delivery whole if nothing of it was sent before, otherwise in pieces; return the target after it.

        Raises as :meth:`run` does.
        """
        shipment, destination = self._shipment, self._destination
        if isinstance(destination, StagedDestination) and not (shipment.is_split or shipment.progress.handled):
            try:
                return destination.publish(shipment.whole())
            except Exception as error:  # noqa: BLE001  # whatever it is, it is classified there
                self._not_whole(error)
        self.run()
        return shipment.staged.target

    def _not_whole(self, error: Exception) -> None:
        whole = DeliveryChild(0, self._shipment.staged.records)
        if is_outage(error) or not self._destination.divisible or self._shipment.consumer == DEAD_LETTERS:
            # a failed dead-letter write stops the run; nothing of the step beyond it is acked (CASES A7)
            raise self._told(error) from self._shown(error)
        known = isinstance(error, Rejected | AlreadyClaimed)
        if whole.take > 1:
            self._split(whole, parted(whole, error, self._bisect), self._cause(error))
        if not known:
            raise (self._bulk(error) if whole.take > 1 else self._alone(error)) from self._shown(error)

    def run(self) -> None:
        """Send what is left, in pieces. Raises what stops the run; records acked until then stay acked."""
        shipment, destination = self._shipment, self._destination
        if shipment.is_split and shipment.staged.records > 1 and self._claim(shipment.whole(), "split"):
            return  # a frozen owner delivered it after all: no child is sent
        while shipment.left:
            if shipment.progress.handled in shipment.progress.marked:
                shipment.progress = past_marked(shipment.progress)
                self._keep(self._moves())
                continue
            child = before_marked(shipment.left[0], shipment.progress)
            if isinstance(destination, StagedDestination):
                self._publish(destination, DeliveryChild(child.skip, 1) if child.single else child)
            else:
                self._send(child)

    def _claim(self, delivery: Delivery, state: str) -> bool:
        """Claim a hash; return whether the destination turns out to have the delivery already."""
        pipeline = self._context.name
        reached("before-claim", pipeline)
        found = blamed(self._node, self._destination.claim, delivery, "split" if state == "split" else "nacked")
        reached("after-claim", pipeline)
        return found == "delivered"

    def _split(self, child: DeliveryChild, parts: list[DeliveryChild], cause: str) -> None:
        shipment, pipeline = self._shipment, self._context.name
        shipment.progress = split_into(shipment.progress, shipment.left, child, parts)
        reached("before-split", pipeline)
        self._store.deliveries.split(shipment.plan.step, shipment.consumer, shipment.progress, cause)
        reached("after-split", pipeline)

    # -- all or nothing -----------------------------------------------------------------------------------------

    def _publish(self, destination: StagedDestination, child: DeliveryChild) -> None:
        shipment, pipeline = self._shipment, self._context.name
        name = self._context.names.child(shipment.plan, shipment.consumer, child.skip, child.take)
        delivery = shipment.child(name, child.skip, child.take)
        reached("before-child", pipeline)
        try:
            destination.publish(delivery)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is classified there
            self._failed(child, delivery, error)
        else:
            reached("after-child", pipeline)
            self._handled(child.take)

    def _failed(self, child: DeliveryChild, delivery: Delivery, error: Exception) -> None:
        if is_outage(error):
            raise blame(error, self._node) from error
        known = isinstance(error, Rejected | AlreadyClaimed)
        if child.take == 1:
            if not known:
                # a lone record with an error that names nothing: the offset stays before it, the next start tries again
                raise self._lone(child.skip, str(error)) from self._shown(error)
            self._nack(child.skip, error.nack if isinstance(error, Rejected) else _LOST_REASON)
            return
        was_split = self._shipment.is_split
        self._divide(child, delivery, error)
        if not known and not was_split:
            raise self._bulk(error) from self._shown(error)

    def _divide(self, child: DeliveryChild, delivery: Delivery, error: Exception) -> None:
        # recorded first, then claimed: nothing of a piece is sent before its parent's hash says split
        self._split(child, parted(child, error, self._bisect), self._cause(error))
        if not isinstance(error, AlreadyClaimed) and self._claim(delivery, "split"):
            self._handled(child.take)

    def _handled(self, records: int) -> None:
        shipment = self._shipment
        shipment.progress = after(shipment.progress, records)
        self._keep(self._moves())

    def _keep(self, moves: Offsets) -> None:
        shipment = self._shipment
        self._store.deliveries.progress(shipment.plan.step, shipment.consumer, shipment.progress, moves)

    def _refused_letter(self, sent: Sent) -> ConduitError | None:
        return refused_letter(sent, self._node, self._redaction)

    # -- errors -------------------------------------------------------------------------------------------------

    def _told(self, error: Exception) -> ConduitError:
        return told(error, self._node, self._redaction)

    def _shown(self, error: Exception) -> Exception | None:
        return shown(error, self._redaction)

    def _shown_bulk(self, error: Exception) -> Exception | None:
        """Return the error as a cause to show, for one that a task has classified already."""
        return None if self._redaction else error

    def _cause(self, error: Exception) -> str:
        """Return why a delivery is split, for the history."""
        return self._redaction.unnamed(error) if self._redaction else cause_of(error)

    def _bulk(self, error: Exception) -> TransientError:
        """Return the error for a delivery of several records that fails without naming one."""
        return split_error(self._cause(error), self._node)

    def _alone(self, error: Exception) -> ConduitError:
        """Return the error for a delivery of a single record that fails with an unclassified error."""
        known = blame(error, self._node)
        if not self._redaction:
            return known
        message = self._masked(self._records.at(0), known.message)
        return TransientError(message, code=known.code, node=known.node)

    def _masked(self, record: StagedRecord, text: str) -> str:
        return self._refusals.masked(self._shipment, record, text)

    def _lone(self, place: int, error: str) -> TransientError:
        record = self._records.at(place)
        error = self._masked(record, error)
        offset = offset_of(self._shipment.plan, record.source, record.ordinal)
        where = f"{record.source}, offset {offset}, position {record.record.position}"
        return lone_error(where, error, self._node)

    # -- direct -------------------------------------------------------------------------------------------------

    def _send(self, child: DeliveryChild) -> None:
        shipment = self._shipment
        ahead = shipment.progress.namespaces
        sent = DirectSender(self._context).send(
            shipment.plan, shipment.staged, child.skip, child.take, ahead, child.single, self._flushed
        )
        if shipment.consumer == DEAD_LETTERS and (refused := self._refused_letter(sent)) is not None:
            # a failed dead-letter write stops the run; nothing of the step beyond it is acked (CASES A7)
            raise refused
        for place, code, message in sent.nacks:
            # in memory only: the next transaction stores it
            shipment.progress = progress_of(Acked(min(place, sent.acked.handled)), shipment.progress)
            if place == shipment.progress.handled:
                self._nack(place, Nack(code, message))
        shipment.progress = progress_of(sent.acked, shipment.progress)
        self._keep_acked(sent.acked)
        if sent.error is not None:
            self._not_sent(child, sent.error.as_error(), sent.bulk)

    def _not_sent(self, child: DeliveryChild, error: ConduitError, bulk: bool) -> None:
        shipment = self._shipment
        error.node = error.node or self._node
        if not bulk:
            raise error
        rest = child.skip + child.take - shipment.progress.handled
        if child.single or rest <= 1:
            raise self._lone(shipment.progress.handled, error.message) from self._shown_bulk(error)
        left, was_split = shipment.left[0], shipment.is_split
        self._split(left, pieces(left, self._bisect), error.message)
        if not was_split:
            raise split_error(error.message, self._node) from self._shown_bulk(error)

    def _flushed(self, acked: Acked) -> bool:
        """Store acks while the job runs, at the flush interval; they are stored again at its end."""
        shipment = self._shipment
        kept = shipment.progress
        shipment.progress = progress_of(acked, kept)
        try:
            self._keep_acked(acked)
        except (ConduitError, SQLAlchemyError):
            shipment.progress = kept  # what goes wrong for good the job's own end says
            return False
        return True

    def _keep_acked(self, acked: Acked) -> None:
        plan = self._shipment.plan
        moves = self._moves() if acked.next is None else self._before(acked.next)
        for name, (_, source, ordinal) in acked.namespaces.items() if not plan.replay else ():
            moves.setdefault(source, {})[name] = offset_of(plan, source, ordinal)
        self._keep(moves)

    # -- records ------------------------------------------------------------------------------------------------

    def _nack(self, place: int, nack: Nack) -> None:
        moves = self._moves(place + 1)
        try:
            refused = self._refusals.refuse(
                self._shipment, place, self._records.at(place), nack, moves, self._has_siblings(place)
            )
        except ConduitError:
            self._keep(self._moves())  # what was acked before it stays acked
            raise
        if not refused:
            self._handled(1)

    def _has_siblings(self, place: int) -> bool:
        """Return whether other records of the delivery come from the same source record; they are adjacent."""
        mine = self._records.origin(place)
        beside = [one for one in (place - 1, place + 1) if 0 <= one < self._shipment.staged.records]
        return any(self._records.origin(one) == mine for one in beside)

    def _moves(self, handled: int | None = None) -> Offsets:
        """Return the offsets once ``handled`` records are handled; by default, those that are."""
        shipment = self._shipment
        handled = shipment.progress.handled if handled is None else handled
        if handled >= shipment.staged.records:
            return self._before(None)
        return self._before(self._records.origin(handled))

    def _before(self, following: tuple[str, int] | None) -> Offsets:
        return before_next(self._shipment.plan, self._shipment.decision, following)
