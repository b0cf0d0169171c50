"""Sending of one delivery in pieces, after it failed as a whole, and to a direct destination.

Source: DELIVERY.md, When publishing fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.acks import Acked
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.delivery_errors import (
    is_outage,
    lone_error,
    published,
    refused_letter,
    shown_cause,
    split_error,
    to_error,
    undivided,
)
from conduit_dagster.engine.delivery_progress import (
    Shipment,
    after,
    before_marked,
    part_of,
    past_marked,
    pieces,
    places_of,
    progress_of,
    split_into,
    with_refused,
)
from conduit_dagster.engine.offset_updates import before_next, offset_of
from conduit_dagster.engine.plugin_results import refused_by
from conduit_dagster.engine.refusals import RefusalOutcome, Refusals, RefusedRecord
from conduit_dagster.engine.restage import DeliveryRecords
from conduit_dagster.engine.sending import Sent, send_directly
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.record import Nack
from conduit_dagster.recovery.classify import blame, blamed, text_of
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import (
    NACKED_TOGETHER,
    AlreadyClaimed,
    Delivery,
    Destination,
    Refusal,
    Rejected,
    StagedDestination,
    StagedRecord,
)
from conduit_dagster.secret_values import hide
from conduit_dagster.state.delivery_store import Offsets
from conduit_dagster.state.steps import DeliveryChild, DeliveryProgress

_LOST_REASON = Nack(
    "delivery.nacked",
    "the destination refused it, and its reason was lost in a crash; or offsets mark was killed as it gave it up",
)


class Redelivery:
    """Sender of one staged delivery in pieces, one at a time, each after the ack of the previous one."""

    def __init__(self, context: StepContext, refusals: Refusals, shipment: Shipment, records: DeliveryRecords) -> None:
        self._context, self._refusals, self._shipment, self._records = context, refusals, shipment, records
        self._store, self._redaction = context.store, context.pipeline.redaction
        self._bisect, self._node = context.settings.bisect, context.node(shipment.consumer)
        self._origins: dict[int, tuple[str, int]] = {}
        """Origins around the last refused records: reading continues after these."""
        self._names_all = False
        """Whether the destination's last rejection names all records that it refuses."""

    @property
    def _destination(self) -> Destination:
        return self._context.consumers[self._shipment.consumer]

    def divide(self, error: Exception) -> list[Refusal]:
        """Divide a delivery that failed as a whole; return the records that it names. Raises like :meth:`run`."""
        whole = DeliveryChild(0, self._shipment.staged.records)
        if isinstance(error, Rejected) and not self._destination.divisible:
            raise undivided(error, self._node, self._redaction) from shown_cause(error, self._redaction)
        if is_outage(error) or not self._destination.divisible or self._shipment.consumer == DEAD_LETTERS:
            # a failed dead-letter write stops the run; nothing after it in the step is acked (CASES A7)
            raise to_error(error, self._node, self._redaction) from shown_cause(error, self._redaction)
        named = self._named(error, whole.take)
        if whole.take > 1:
            # refused records are nacked once the delivery is claimed; until then they remain to be sent like the others
            self._split(whole, [whole] if named else pieces(whole, self._bisect), self._cause(error))
        if not isinstance(error, Rejected | AlreadyClaimed):
            failed = split_error(self._cause(error), self._node) if whole.take > 1 else self._alone(error)
            raise failed from shown_cause(error, self._redaction)
        return named

    def run(self, named: Sequence[Refusal] = ()) -> None:
        """Send the rest in pieces. Raises the error that stops the run; records acked before it stay acked.

        ``named``: records of the next child that the destination has already refused.
        """
        shipment = self._shipment
        if shipment.progress.split and shipment.staged.records > 1 and self._claim(shipment.whole(), "split"):
            return  # a frozen owner delivered it after all: no child is sent
        if named:
            self._refuse(before_marked(shipment.left[0], shipment.progress), named)
        while shipment.left:
            if shipment.progress.handled in shipment.progress.marked:
                shipment.progress = past_marked(shipment.progress)
                self._keep(self._offsets_after())
                continue
            self._send(before_marked(shipment.left[0], shipment.progress))

    def _claim(self, delivery: Delivery, state: str) -> bool:
        """Claim a hash; return whether the destination already has the delivery."""
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

    def _send(self, child: DeliveryChild) -> None:
        """Send a piece, or its first record if its records are sent one by one."""
        destination, pipeline = self._destination, self._context.name
        assert isinstance(destination, StagedDestination), "direct ones have a sender of their own"
        child = DeliveryChild(child.skip, 1) if child.single else child
        delivery = self._context.hashes.delivery(self._shipment, child)
        reached("before-child", pipeline)
        try:
            published(destination, delivery)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is classified there
            self._failed(child, delivery, error)
        else:
            reached("after-child", pipeline)
            self._handled(child)

    def _failed(self, child: DeliveryChild, delivery: Delivery, error: Exception) -> None:
        if is_outage(error):
            raise blame(error, self._node) from error
        named, is_alone = self._named(error, delivery.records), child.take == 1
        if is_alone and isinstance(error, AlreadyClaimed):
            named = [Refusal(0, _LOST_REASON)]
        if is_alone and not named:
            # a single record with an error that names nothing: the offset stays before it, and the next start tries
            # again
            raise self._lone(child.skip, _text(error)) from shown_cause(error, self._redaction)
        # claim first, then divide: no piece is sent, by any process, before its parent's hash is claimed as split
        if not is_alone and not isinstance(error, AlreadyClaimed) and self._claim(delivery, "split"):
            self._handled(child)
            return
        if named:
            self._refuse(child, named)
            return
        was_split = self._shipment.progress.split
        self._split(child, pieces(child, self._bisect), self._cause(error))
        if not (was_split or isinstance(error, AlreadyClaimed)):
            raise split_error(self._cause(error), self._node) from shown_cause(error, self._redaction)

    def _handled(self, child: DeliveryChild) -> None:
        """Record that a child is delivered; the records it leaves out were refused before."""
        shipment = self._shipment
        shipment.progress = after(shipment.progress, child.take, refused=len(child.without))
        self._keep(self._offsets_after())

    def _named(self, error: Exception, records: int) -> list[Refusal]:
        """Return the records that the error names."""
        named = refused_by(self._node, error, records)
        self._names_all = len(named) > 1 or (isinstance(error, Rejected) and error.names_all)
        return named

    # -- refused records ----------------------------------------------------------------------------------------

    def _refuse(self, child: DeliveryChild, named: Sequence[Refusal]) -> None:
        """Nack the records that a child's destination names, all together, without sending them again."""
        shipment, skips = self._shipment, self._destination.skips_records
        child, places = self._reach(child, named), places_of(child)
        refused = [(places[one.place], one.nack) for one in named[:NACKED_TOGETHER]]

        def advance(outcome: RefusalOutcome) -> tuple[DeliveryProgress, Offsets]:
            progress = with_refused(shipment.progress, child, outcome.nacked, _apart(outcome), skips)
            return progress, self._offsets_after(progress.handled)

        outcome = self._refusals.refuse_all(shipment, self._described(child, refused), advance)
        if outcome.nacked:
            return
        if child.take > 1:
            # records before the first one that the window does not accept are sent first
            shipment.progress = with_refused(shipment.progress, child, (), _apart(outcome), skips)
            self._keep(self._offsets_after())
        elif outcome.error is not None:
            self._keep(self._offsets_after())  # records acked before it stay acked
            raise outcome.error
        else:
            self._handled(child)

    def _reach(self, child: DeliveryChild, named: Sequence[Refusal]) -> DeliveryChild:
        """Return the beginning of a child, up to the last record of ``named`` that is nacked together with the first.

        The whole child if the destination names all, and fewer than are nacked together: they may need each other.
        Otherwise more may follow, and the records before them must not be sent again for each one.
        """
        if self._names_all and len(named) < NACKED_TOGETHER:
            return child
        return part_of(child, child.skip, places_of(child)[named[:NACKED_TOGETHER][-1].place] + 1 - child.skip)

    def _described(self, child: DeliveryChild, refused: Sequence[tuple[int, Nack]]) -> list[RefusedRecord]:
        """Return refused records with their contents and origins, reading the delivery once, in order."""
        nacks, end = dict(refused), child.skip + child.take
        ahead = next((place for place in places_of(child) if place not in nacks), end)
        beside = {at for place in nacks for at in (place - 1, place, place + 1)}
        self._origins = {}
        found: dict[int, StagedRecord] = {}
        for place in sorted({*beside, ahead, end}):
            if 0 <= place < self._shipment.staged.records:
                self._origins[place] = self._records.origin(place)
                if place in nacks:
                    found[place] = self._records.at(place)
        return [RefusedRecord(place, found[place], nack, self._has_siblings(place)) for place, nack in refused]

    def _keep(self, offsets: Offsets) -> None:
        shipment = self._shipment
        self._store.deliveries.progress(shipment.plan.step, shipment.consumer, shipment.progress, offsets)

    # -- errors -------------------------------------------------------------------------------------------------

    def _cause(self, error: Exception) -> str:
        """Return why a delivery is split, for the history."""
        if self._redaction:
            return self._redaction.unnamed(error)
        return f"claimed as {error.state} before" if isinstance(error, AlreadyClaimed) else hide(_text(error))

    def _alone(self, error: Exception) -> ConduitError:
        """Return the error for a delivery of a single record that fails with an unclassified error."""
        known = blame(error, self._node)
        if not self._redaction:
            return known
        message = self._refusals.masked(self._shipment, self._records.at(0), known.message)
        return TransientError(message, code=known.code, node=known.node)

    def _lone(self, place: int, error: str) -> TransientError:
        record = self._records.at(place)
        error = self._refusals.masked(self._shipment, record, error)
        offset = offset_of(self._shipment.plan, record.source, record.ordinal)
        where = f"{record.source}, offset {offset}, position {record.record.position}"
        return lone_error(record.source, offset, where, error, self._node)

    # -- records ------------------------------------------------------------------------------------------------

    def _has_siblings(self, place: int) -> bool:
        """Return whether other records of the delivery come from the same source record; they are adjacent."""
        mine = self._origin(place)
        beside = [one for one in (place - 1, place + 1) if 0 <= one < self._shipment.staged.records]
        return any(self._origin(one) == mine for one in beside)

    def _origin(self, place: int) -> tuple[str, int]:
        known = self._origins.get(place)
        return self._records.origin(place) if known is None else known

    def _offsets_after(self, handled: int | None = None) -> Offsets:
        """Return the offsets after ``handled`` records; by default, after those handled so far."""
        shipment = self._shipment
        handled = shipment.progress.handled if handled is None else handled
        if handled >= shipment.staged.records:
            return self._before(None)
        return self._before(self._origin(handled))

    def _before(self, following: tuple[str, int] | None) -> Offsets:
        return before_next(self._shipment.plan, self._shipment.decision, following)


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


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, Rejected) else text_of(error)


def _apart(outcome: RefusalOutcome) -> list[int]:
    """Return the places that become children of their own: the destination decides their outcome."""
    return [*outcome.delivered, *([] if outcome.stop is None else [outcome.stop])]
