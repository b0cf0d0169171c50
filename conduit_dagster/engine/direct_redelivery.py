"""Sending of one delivery to a direct destination, whose records are acked one by one (DELIVERY.md)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.acks import Acked
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.delivery_errors import refused_letter, split_error
from conduit_dagster.engine.delivery_progress import pieces, progress_of
from conduit_dagster.engine.offset_updates import offset_of
from conduit_dagster.engine.redelivery import Redelivery
from conduit_dagster.engine.refusals import RefusalOutcome
from conduit_dagster.engine.sending import Sent, send_directly
from conduit_dagster.record import Nack
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import NACKED_TOGETHER
from conduit_dagster.state.delivery_store import Offsets
from conduit_dagster.state.steps import DeliveryChild, DeliveryProgress


class DirectRedelivery(Redelivery):
    """Sender of what is left of a direct destination's delivery, by jobs whose acks become durable meanwhile."""

    def _send(self, child: DeliveryChild) -> None:
        shipment = self._shipment
        piece = DeliveryChild(child.skip, child.take, child.single or child.take == 1)
        ahead = shipment.progress.namespaces
        sent = send_directly(self._context, shipment.plan, shipment.staged, piece, ahead, self._flushed)
        if shipment.consumer == DEAD_LETTERS and (refused := refused_letter(sent, self._node, self._redaction)):
            # a failed dead-letter write stops the run; nothing after it in the step is acked (CASES A7)
            raise refused
        self._nack_sent(sent)
        shipment.progress = progress_of(sent.acked, shipment.progress)
        self._keep_acked(sent.acked)
        if sent.error is not None:
            self._not_sent(child, sent.error.as_error(), sent.bulk)

    def _nack_sent(self, sent: Sent) -> None:
        """Nack the records that the job's destination refused, up to the first unhandled record."""
        shipment = self._shipment
        first, handled = shipment.progress.handled, sent.acked.handled
        refused = [(place, Nack(code, message)) for place, code, message in sent.nacks if first <= place <= handled]
        while refused:
            some, refused = refused[:NACKED_TOGETHER], refused[NACKED_TOGETHER:]
            self._nack_together(some)

    def _nack_together(self, refused: Sequence[tuple[int, Nack]]) -> None:
        shipment = self._shipment
        first, end = refused[0][0], refused[-1][0] + 1

        def advance(outcome: RefusalOutcome) -> tuple[DeliveryProgress, Offsets]:
            reached_place = end if outcome.stop is None else outcome.stop
            progress = progress_of(Acked(reached_place), shipment.progress)
            progress = msgspec.structs.replace(progress, refused=progress.refused + len(outcome.nacked))
            return progress, self._offsets_after(progress.handled)

        described = self._described(DeliveryChild(first, end - first), refused)
        outcome = self._refusals.refuse_all(shipment, described, advance)
        if not outcome.nacked:
            # in memory only: the next transaction stores it
            shipment.progress, _ = advance(outcome)
        if outcome.error is not None:
            self._keep(self._offsets_after())  # records acked before it stay acked
            raise outcome.error

    def _not_sent(self, child: DeliveryChild, error: ConduitError, bulk: bool) -> None:
        shipment = self._shipment
        error.set_node(self._node)
        rest = child.skip + child.take - shipment.progress.handled
        if not bulk or rest <= 0:  # each record had its receipt before the sender failed: none is at fault
            raise error
        cause = None if self._redaction else error
        if child.single or rest <= 1:
            raise self._lone(shipment.progress.handled, error.message) from cause
        left, was_split = shipment.left[0], shipment.progress.split
        self._split(left, pieces(left, self._bisect), error.message)
        if not was_split:
            raise split_error(error.message, self._node) from cause

    def _flushed(self, acked: Acked) -> bool:
        """Store acks while the job runs, at the flush interval; they are stored again when it ends."""
        shipment = self._shipment
        kept = shipment.progress
        shipment.progress = progress_of(acked, kept)
        try:
            self._keep_acked(acked)
        except (ConduitError, SQLAlchemyError):
            shipment.progress = kept  # a permanent failure is reported when the job ends
            return False
        return True

    def _keep_acked(self, acked: Acked) -> None:
        plan = self._shipment.plan
        offsets = self._offsets_after() if acked.next is None else self._before(acked.next)
        for name, (_, source, ordinal) in acked.namespaces.items() if not plan.replay else ():
            offsets.setdefault(source, {})[name] = offset_of(plan, source, ordinal)
        self._keep(offsets)
