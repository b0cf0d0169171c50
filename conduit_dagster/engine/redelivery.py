"""Deliveries that are sent in pieces: after a bulk error, and to direct destinations (DELIVERY.md)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from conduit_dagster.connectors.base import AlreadyClaimed, Delivery, Destination, Rejected
from conduit_dagster.connectors.staged import StagedRecord
from conduit_dagster.engine.acks import Acked
from conduit_dagster.engine.blame import blame, blamed
from conduit_dagster.engine.compiled import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.direct import DirectSender
from conduit_dagster.engine.moves import Offsets, after_step, before_record, offset_of
from conduit_dagster.engine.naming import Names
from conduit_dagster.engine.refusals import Refusals
from conduit_dagster.engine.sending import Sent
from conduit_dagster.engine.shipment import Records, Shipment, after
from conduit_dagster.record import Nack
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.steps import Child, Progress
from conduit_dagster.state.store import PipelineStore

_LOST_REASON = Nack("delivery.nacked", "the destination refused it; its reason was lost in a crash")


def is_outage(error: Exception) -> bool:
    """Connection, timeout, resource, shutdown, or a fault of the configuration: it never becomes nacks."""
    return isinstance(error, ConduitError | OSError)


class Redelivery:
    """Sends what is left of one delivery, piece after piece, each after the previous one's ack."""

    def __init__(
        self,
        pipeline: CompiledPipeline,
        store: PipelineStore,
        refusals: Refusals,
        direct: DirectSender,
        records: Callable[[Shipment], Delivery],
        bisect: bool,
        shipment: Shipment,
    ) -> None:
        self._pipeline, self._store, self._refusals, self._direct = pipeline, store, refusals, direct
        self._bisect, self._shipment = bisect, shipment
        self._names = Names(pipeline)
        self._node = f"{pipeline.program.pipeline}:{shipment.consumer}"
        self._open = lambda: Records(records(shipment))
        self._records: Records | None = None

    @property
    def _destination(self) -> Destination:
        return self._pipeline.consumers()[self._shipment.consumer]

    def run(self) -> None:
        """Returns when every record is handled. Raises what stops the run; what was acked until then stays acked."""
        shipment = self._shipment
        if shipment.is_split and shipment.staged.records > 1 and self._claim(shipment.whole(), "split"):
            return  # a frozen owner delivered it after all: no child is sent
        while shipment.left:
            child = shipment.left[0]
            if self._destination.placement == "direct":
                self._send(child)
            elif child.single and child.take > 1:
                self._publish(Child(child.skip, 1))
            else:
                self._publish(child)

    def _claim(self, delivery: Delivery, state: str) -> bool:
        """Whether the destination turns out to have it."""
        pipeline = self._pipeline.program.pipeline
        reached("before-claim", pipeline)
        found = blamed(self._node, self._destination.claim, delivery, "split" if state == "split" else "nacked")
        reached("after-claim", pipeline)
        return found == "delivered"

    # -- all or nothing -----------------------------------------------------------------------------------------

    def _publish(self, child: Child) -> None:
        shipment, pipeline = self._shipment, self._pipeline.program.pipeline
        name = self._names.child(shipment.plan, shipment.consumer, child.skip, child.take)
        delivery = shipment.child(name, child.skip, child.take)
        reached("before-child", pipeline)
        try:
            self._destination.publish(delivery)
        except Rejected as rejected:
            self._rejected(child, delivery, rejected)
        except AlreadyClaimed as claimed:
            self._claimed(child, claimed)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is classified there
            self._failed(child, delivery, error)
        else:
            reached("after-child", pipeline)
            self._handled(child.take)

    def _handled(self, records: int) -> None:
        shipment = self._shipment
        shipment.progress = after(shipment.progress, records)
        self._keep()

    def _keep(self) -> None:
        shipment = self._shipment
        moves = self._moves(shipment.progress.handled)
        self._store.deliveries.progress(shipment.plan.step, shipment.consumer, shipment.progress, moves)

    def _rejected(self, child: Child, delivery: Delivery, rejected: Rejected) -> None:
        """The record that is named is a nack at once; those around it go on in bulk."""
        if child.take == 1:
            self._nack(child.skip, rejected.nack)
            return
        place = child.skip + rejected.place
        around = [
            Child(child.skip, rejected.place),
            Child(place, 1),
            Child(place + 1, child.skip + child.take - place - 1),
        ]
        self._divide(child, delivery, [piece for piece in around if piece.take], str(rejected))

    def _divide(self, child: Child, delivery: Delivery, pieces: list[Child], cause: str) -> None:
        # recorded first, then claimed: nothing of a piece is sent before its parent's hash says split
        self._split(child, pieces, cause)
        if self._claim(delivery, "split"):
            self._handled(child.take)

    def _split(self, child: Child, pieces: list[Child], cause: str) -> None:
        shipment, pipeline = self._shipment, self._pipeline.program.pipeline
        pending = [*pieces, *_behind(shipment.left, child)]
        shipment.progress = msgspec.structs.replace(shipment.progress, pending=pending, split=True)
        reached("before-split", pipeline)
        self._store.deliveries.split(shipment.plan.step, shipment.consumer, shipment.progress, cause)
        reached("after-split", pipeline)

    def _claimed(self, child: Child, claimed: AlreadyClaimed) -> None:
        if child.take == 1:
            self._nack(child.skip, _LOST_REASON)
        else:
            self._split(child, self._pieces(child), f"claimed as {claimed.state} before")

    def _failed(self, child: Child, delivery: Delivery, error: Exception) -> None:
        if is_outage(error):
            raise blame(error, self._node) from error
        if child.take == 1:
            # a lone record with an error that names nothing: the offset stays before it, the next start tries again
            raise self._lone(child.skip, error) from error
        was_split = self._shipment.is_split
        self._divide(child, delivery, self._pieces(child), str(error))
        if not was_split:
            raise split_error(error, self._node) from error

    def _pieces(self, child: Child) -> list[Child]:
        return pieces(child, self._bisect)

    def _lone(self, place: int, error: object) -> TransientError:
        return lone_error(self._describe(place), error, self._node)

    def _describe(self, place: int) -> str:
        record = self._record(place)
        offset = offset_of(self._shipment.plan, record.source, record.ordinal)
        return f"{record.source}, offset {offset}, position {record.record.position}"

    # -- direct -------------------------------------------------------------------------------------------------

    def _send(self, child: Child) -> None:
        shipment = self._shipment
        ahead = shipment.progress.namespaces
        sent = self._direct.send(
            shipment.plan, shipment.staged, child.skip, child.take, ahead, child.single, self._flushed
        )
        if shipment.consumer == DEAD_LETTERS and (refused := refused_letter(sent, self._node)) is not None:
            # a failed dead-letter write stops the run; nothing of the step beyond it is acked (CASES A7)
            raise refused
        for place, code, message in sent.nacks:
            self._advance(min(place, sent.acked.handled))
            if place == shipment.progress.handled:
                self._nack(place, Nack(code, message))
        self._take(sent.acked)
        self._keep_acked(sent.acked)
        if sent.error is None:
            return
        error = sent.error.as_error()
        error.node = error.node or self._node
        if not sent.bulk:
            raise error
        rest = child.skip + child.take - shipment.progress.handled
        if child.single or rest <= 1:
            raise self._lone(shipment.progress.handled, error.message) from error
        left = shipment.left[0]
        was_split = shipment.is_split
        self._split(left, self._pieces(left), error.message)
        if not was_split:
            raise split_error(error.message, self._node) from error

    def _advance(self, upto: int) -> None:
        """Memory only: the next transaction stores it."""
        shipment = self._shipment
        if upto > shipment.progress.handled:
            shipment.progress = after(shipment.progress, upto - shipment.progress.handled)

    def _take(self, acked: Acked) -> None:
        self._advance(acked.handled)
        shipment = self._shipment
        ahead = {name: place for name, (place, _, _) in acked.namespaces.items() if place >= acked.handled}
        # what a run before knew to be ahead stays known: those records were not sent again
        kept = {n: p for n, p in shipment.progress.namespaces.items() if p >= acked.handled}
        shipment.progress = msgspec.structs.replace(shipment.progress, namespaces={**kept, **ahead})

    def _flushed(self, acked: Acked) -> None:
        """While the job runs: the store hears of acks at the flush interval, and is told again at the end."""
        shipment = self._shipment
        kept = shipment.progress
        self._take(acked)
        try:
            self._keep_acked(acked)
        except ConduitError:
            shipment.progress = kept  # the job's own end says it

    def _keep_acked(self, acked: Acked) -> None:
        plan, shipment = self._shipment.plan, self._shipment
        if acked.next is None:
            moves = self._moves(shipment.progress.handled)
        else:
            moves = before_record(self._pipeline, plan, shipment.decision, *acked.next)
        for name, (_, source, ordinal) in acked.namespaces.items():
            moves.setdefault(source, {})[name] = offset_of(plan, source, ordinal)
        self._store.deliveries.progress(plan.step, shipment.consumer, shipment.progress, moves)

    # -- records ------------------------------------------------------------------------------------------------

    def _nack(self, place: int, nack: Nack) -> None:
        moves = self._moves(place + 1)
        try:
            refused = self._refusals.refuse(self._shipment, place, self._record(place), nack, moves)
        except ConduitError:
            self._keep()  # what was acked before it stays acked
            raise
        if not refused:
            self._handled(1)

    def _record(self, place: int) -> StagedRecord:
        self._records = self._records or self._open()
        return self._records.at(place)

    def _moves(self, handled: int) -> Offsets:
        """Offsets once so many records are handled: right before the next one's source record."""
        shipment = self._shipment
        if handled >= shipment.staged.records:
            return after_step(self._pipeline, shipment.plan, shipment.decision)
        following = self._record(handled)
        return before_record(self._pipeline, shipment.plan, shipment.decision, following.source, following.ordinal)


def refused_letter(sent: Sent, node: str) -> ConduitError | None:
    """Why a dead-letter queue did not take a letter; None where it did."""
    if sent.error is None and not sent.nacks:
        return None
    if sent.error is not None:
        error = sent.error.as_error()
    else:
        error = TransientError(f"a dead letter was refused: {sent.nacks[0][2]}", code="dead_letters.refused")
    error.node = error.node or node
    return error


def pieces(child: Child, bisect: bool) -> list[Child]:
    """What a range is sent as after a bulk error: one record at a time, or its halves."""
    if not bisect:
        return [Child(child.skip, child.take, single=True)]
    half = child.take // 2
    return [Child(child.skip, half), Child(child.skip + half, child.take - half)]


def around(child: Child, place: int) -> list[Child]:
    """A range as what lies before a record, the record, and what lies behind it."""
    behind = child.skip + child.take - place - 1
    three = [Child(child.skip, place - child.skip), Child(place, 1), Child(place + 1, behind)]
    return [piece for piece in three if piece.take]


def split_error(error: object, node: str) -> TransientError:
    """Why the run stops after a bulk error."""
    return TransientError(
        f"the destination failed and named no record: {error}",
        code="delivery.bulk_failed",
        node=node,
        fix="run again: its records are then sent one at a time, so that the one at fault is found",
    )


def lone_error(where: str, error: object, node: str) -> TransientError:
    """Why the run stops at a record that fails alone and is not refused."""
    return TransientError(
        f"one record fails: {error}",
        code="delivery.record_failed",
        node=node,
        place=where,
        fix="mend the destination and run again; or skip the record with conduit-dagster offsets mark",
    )


def _behind(left: list[Child], child: Child) -> list[Child]:
    """What follows ``child``, which is the first of ``left`` or its beginning."""
    first = left[0]
    rest = Child(first.skip + child.take, first.take - child.take, first.single)
    return [*([rest] if rest.take else []), *left[1:]]


def progress_of(acked: Acked, known: Progress) -> Progress:
    """A run's last flush taken into what the store knows: never backwards."""
    further = after(known, max(0, acked.handled - known.handled))
    ahead = dict(known.namespaces)
    for name, (place, _, _) in acked.namespaces.items():
        ahead[name] = max(place, ahead.get(name, -1))
    kept = {name: place for name, place in ahead.items() if place >= further.handled}
    return msgspec.structs.replace(further, namespaces=kept)
