"""``offsets mark PIPELINE CONSUMER OFFSET``: count records up to an offset as handled without sending them.

Source: CASES C8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.delivery_progress import after, past_marked
from conduit_dagster.engine.offset_updates import is_joined, last_offset, offset_of, span_of
from conduit_dagster.engine.operate.lost_copies import give_up_copies
from conduit_dagster.engine.operate.open_delivery import (
    NackClaims,
    OpenDelivery,
    finish_step,
    open_delivery,
    require_divisible,
)
from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, put_offset
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import StagedRecord
from conduit_dagster.state.delivery_store import end_delivery, move_offsets, put_progress
from conduit_dagster.state.history import record_event
from conduit_dagster.state.pipeline_state import SENT_AGAIN
from conduit_dagster.state.steps import DeliveryChild, DeliveryProgress


@dataclass(frozen=True)
class DeliveryPlace:
    """A place in a delivery, up to which records are marked."""

    source: str
    offset: int
    place: int
    """Index of the first record after the offset, which remains to be sent."""
    following: StagedRecord | None
    """That record; None at the end of the delivery."""
    named: list[int]
    """Offsets of the records between the delivery's progress and the place, in order."""
    ahead: int
    """Number of those that the destination had acked out of order."""


def require_within(opened: OpenDelivery, source: str, offset: int, is_record: bool = False) -> None:
    """Raise ``FatalError`` (``offsets.beyond_step``, ``.before_step``) for an offset outside of the step.

    The offset right before the step is valid for setting a consumer back, unless it must be a record (``is_record``).
    """
    shipment = opened.shipment
    first, last = span_of(shipment.plan, source).offset, last_offset(shipment.plan, shipment.decision, source)
    if first - (not is_record) <= offset <= last:
        return
    side = "beyond" if offset > last else "before"
    raise refused(
        f"offsets.{side}_step",
        f"offset {offset} is {side} the open step {shipment.plan.step}, which holds {first} to {last} of {source}",
        f"mark one of {first} to {last}",
        node=opened.node,
    )


def cut_at(opened: OpenDelivery, source: str, offset: int) -> DeliveryPlace:
    """Find an offset among the delivery's records. Raises ``FatalError`` (``offsets.order``).

    A delivery is handled from its front: earlier records of another source are only skipped if they are named.
    """
    plan, progress = opened.shipment.plan, opened.shipment.progress
    order = [span.source for span in plan.ranges]
    limit = (order.index(source), offset - span_of(plan, source).offset)
    place, ahead = 0, 0
    following: StagedRecord | None = None
    forward, back = list[tuple[str, int]](), list[tuple[str, int]]()
    for number, record in enumerate(opened.records):
        at = (record.source, offset_of(plan, record.source, record.ordinal))
        if (order.index(record.source), record.ordinal) > limit:
            following = following or record
            if number >= progress.handled:
                break
            back.append(at)
            continue
        place = number + 1
        if number >= progress.handled:
            forward.append(at)
            ahead += number <= progress.namespaces.get(record.record.collection, -1)
    _require_order(opened, source, forward)
    return DeliveryPlace(source, offset, place, following, [number for _, number in back or forward], ahead)


def _require_order(opened: OpenDelivery, source: str, forward: list[tuple[str, int]]) -> None:
    others = [at for at in forward if at[0] != source]
    if not others:
        return
    name, last = others[-1]
    command = f"conduit-dagster offsets mark {opened.lock.id} {opened.consumer} {last} --source {name}"
    raise refused(
        "offsets.order",
        f"{len(others)} records of {name}, up to offset {last}, come before those of {source} and are not handled",
        f"send them, or mark them first: {command}",
        node=opened.node,
    )


RESENDS: Final = ("direct", "driver")
"""Placements of destinations that store no delivery hash: they accept a record any number of times."""


def require_resending(opened: OpenDelivery, cut: DeliveryPlace, force: bool) -> None:
    """Raise ``FatalError``: ``offsets.kept_once``, ``offsets.refused_before``, and without ``force`` ``.backwards``."""
    many = f"{len(cut.named)} records (offsets {cut.named[0]} to {cut.named[-1]})"
    rewind = f"conduit-dagster positions rewind {opened.lock.id} {cut.source}"
    if opened.destination.placement not in RESENDS:
        message = f"{opened.consumer} keeps {many} under their delivery hash and takes none of them twice"
        fix = f"finish the step, then {rewind}: what is read again has new names"
        raise refused("offsets.kept_once", message, fix, node=opened.node)
    if opened.shipment.progress.refused:
        message = f"of the step's records that {opened.consumer} has handled some were refused or marked: sent again,"
        fix = f"go on from here, or finish the step and then {rewind}"
        raise refused("offsets.refused_before", f"{message} they would be counted twice", fix, node=opened.node)
    if not force:
        message = f"offset {cut.offset} is backwards: {opened.consumer} has handled {many}"
        raise refused("offsets.backwards", message, "repeat it with --force to have them sent again", node=opened.node)


def set_back(opened: OpenDelivery, cut: DeliveryPlace) -> None:
    """Make the cut's record the next one of the delivery, although it is handled."""
    lock, shipment = opened.lock, opened.shipment
    _forget_acks(opened, cut)
    shipment.progress = _before(shipment.progress, cut.place)
    offsets = _offsets(opened, cut)

    def work(connection: sa.Connection) -> None:
        put_progress(connection, lock.id, shipment.plan.step, opened.consumer, shipment.progress)
        for source, upto in offsets:
            put_offset(connection, lock.id, opened.consumer, source, upto)
        record_event(
            connection, lock.id, "set_back", by=lock.by, consumer=opened.consumer, source=cut.source,
            step=shipment.plan.step, records=len(cut.named), first=cut.named[0], last=cut.named[-1],
        )  # fmt: skip

    lock.store.transactions.run(work)


def _forget_acks(opened: OpenDelivery, cut: DeliveryPlace) -> None:
    """Remove the acks that a job made durable: they would move the delivery forward again."""
    lock, shipment = opened.lock, opened.shipment
    reached("before-acks", lock.id)
    acks = [name for name in storage.files(shipment.staged.staging) if name.startswith("acks-")]
    if not acks:
        return
    # stored first, as the owner: then these files mean nothing any more, and those of a later owner have other names
    following = _record_at(opened, cut, shipment.progress.handled)
    offsets = opened.offsets(following)
    lock.store.deliveries.progress(shipment.plan.step, opened.consumer, shipment.progress, offsets)
    reached("after-acks", lock.id)
    for name in acks:
        storage.remove(storage.join(shipment.staged.staging, name))
    reached("before-set-back", lock.id)


def _before(progress: DeliveryProgress, place: int) -> DeliveryProgress:
    pending = list(progress.pending)
    if progress.split:
        pending.insert(0, DeliveryChild(place, progress.handled - place, single=True))
    return DeliveryProgress(place, pending, progress.split, marked=progress.marked)


def _offsets(opened: OpenDelivery, cut: DeliveryPlace) -> list[tuple[str, int]]:
    """Return the new offsets of the next record's source and of the sources after it."""
    following, found = cut.following, list[tuple[str, int]]()
    assert following is not None  # the cut lies before handled records
    known = opened.loop.context.state.sources
    behind = False
    for span in opened.shipment.plan.ranges:
        behind = behind or span.source == following.source
        # the offsets of a join's members move with the whole step only, and a range that is sent again moves none
        if behind and not is_joined(opened.shipment.plan) and not known[span.source].unit.get(SENT_AGAIN):
            ordinal = following.ordinal if span.source == following.source else 0
            found.append((span.connector, span.offset + ordinal - 1))
    return found


def mark(
    lock: PipelineLock,
    consumer: str | None,
    offset: int,
    source: str | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Mark the records of the consumer's open delivery up to ``offset`` of ``source`` as handled; nothing is sent.

    ``force`` allows an offset before the consumer's own: the records between are sent again. Raises ``FatalError``
    (``offsets.*``) for an offset beyond the open step, backwards or out of order, or if the destination takes no single
    records. Dead letters only where their staging is lost, see :func:`give_up_copies`.
    """
    if consumer == DEAD_LETTERS:
        return give_up_copies(lock, offset, source, dry_run)
    opened = open_delivery(lock, consumer, change=not dry_run)
    if opened is None:
        return {"pipeline": lock.id, "consumer": consumer, "did": "held", "records": 0, "offsets": []}
    try:
        require_divisible(opened)
        require_no_replay(opened)
        name = chosen("source", source, [span.source for span in opened.shipment.plan.ranges], lock.id)
        require_within(opened, name, offset)
        return _mark(opened, cut_at(opened, name, offset), force, dry_run)
    finally:
        opened.loop.restaged.discard()


def require_no_replay(opened: OpenDelivery) -> None:
    """Raise ``FatalError`` (``offsets.replay``) if the open step replays dead letters."""
    if opened.shipment.plan.replay:
        raise refused(
            "offsets.replay",
            "the open step sends dead letters again: marked, they would count as delivered",
            f"run it once, then conduit-dagster dlq discard {opened.lock.id} closes letters with a note",
            node=opened.node,
        )


def _mark(opened: OpenDelivery, cut: DeliveryPlace, force: bool, dry_run: bool) -> dict[str, Any]:
    handled = opened.shipment.progress.handled
    if cut.place == handled:
        return _told(opened, cut, "nothing")
    if cut.place < handled:
        require_resending(opened, cut, force)
        if not dry_run:
            set_back(opened, cut)
        return _told(opened, cut, "set back")
    if dry_run:
        return _told(opened, cut, "marked", cut.ahead)
    delivered = _forward(opened, cut)
    return _told(opened, cut, "marked", delivered, opened.is_done and finish_step(opened))


def _forward(opened: OpenDelivery, cut: DeliveryPlace) -> int:
    """Move the delivery forward; return how many of the records the destination already had."""
    shipment = opened.shipment
    if opened.destination.placement in RESENDS:
        wanted = cut.place - shipment.progress.handled
        shipment.progress = past_marked(after(shipment.progress, wanted, refused=wanted - cut.ahead))
        _keep(opened, cut, cut.named)
        return cut.ahead
    claiming = NackClaims(opened)
    before = shipment.progress.handled
    try:
        claiming.skip_to(cut.place)
        shipment.progress = past_marked(shipment.progress)
    finally:
        if (handled := shipment.progress.handled - before) > 0:
            # a record claimed as nacked is never sent, even if a later claim failed
            _keep(opened, cut, cut.named[:handled])
    return claiming.delivered


def _keep(opened: OpenDelivery, cut: DeliveryPlace, named: Sequence[int]) -> None:
    following = _record_at(opened, cut, opened.shipment.progress.handled)
    keep_marked(opened, following, cut.source, records=len(named), first=named[0], last=named[-1])


def keep_marked(opened: OpenDelivery, following: StagedRecord | None, source: str, **marked: Any) -> None:
    """Store the delivery's progress past marked records, and its end if all of its records are handled.

    ``following``: the first record that is not handled; None if all are. ``marked``: facts for the history; none if no
    record was marked.
    """
    lock, shipment = opened.lock, opened.shipment
    step, staged, offsets = shipment.plan.step, shipment.staged, opened.offsets(following)

    def work(connection: sa.Connection) -> None:
        put_progress(connection, lock.id, step, staged.consumer, shipment.progress)
        move_offsets(connection, lock.id, [staged.consumer], offsets)
        if opened.is_done:
            end_delivery(connection, lock.id, step, staged.consumer, shipment.delivered, staged.target)
        if marked:
            own = {"by": lock.by, "consumer": opened.consumer, "source": source, "step": step}
            record_event(connection, lock.id, "marked", **own, **marked)

    lock.store.transactions.run(work)


def _record_at(opened: OpenDelivery, cut: DeliveryPlace, place: int) -> StagedRecord | None:
    if place == cut.place:
        return cut.following
    return next((record for number, record in enumerate(opened.records) if number == place), None)


def _told(
    opened: OpenDelivery, cut: DeliveryPlace, did: str, delivered: int = 0, finished: bool = False
) -> dict[str, Any]:
    facts = marked_facts(opened, cut.source, cut.named, cut.following)
    return {**facts, "did": did, "delivered": delivered, "step_done": finished}


def marked_facts(
    opened: OpenDelivery, source: str, offsets: list[int], following: StagedRecord | None
) -> dict[str, Any]:
    """Return the result of marking records with these offsets, apart from what was done.

    ``following``: the next record that is to be sent; None if there is none.
    """
    plan = opened.shipment.plan
    return {
        "pipeline": opened.lock.id,
        "consumer": opened.consumer,
        "source": source,
        "step": plan.step,
        "records": len(offsets),
        "offsets": offsets,
        "next": None if following is None else offset_of(plan, following.source, following.ordinal),
        "delivery_done": opened.is_done,
    }
