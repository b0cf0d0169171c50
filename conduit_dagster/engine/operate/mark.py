"""``offsets mark``: count records of the open step as handled without sending them (CASES C8)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from conduit_dagster.engine.delivery_progress import after
from conduit_dagster.engine.offset_updates import offset_of
from conduit_dagster.engine.operate.claiming import Claiming
from conduit_dagster.engine.operate.open_delivery import OpenDelivery, finish_step, open_delivery, require_divisible
from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
from conduit_dagster.engine.operate.reset_offset import RESENDS, require_resending, set_back
from conduit_dagster.engine.operate.seek import Cut, cut_at, require_within
from conduit_dagster.sdk import StagedRecord
from conduit_dagster.state.consumer_offsets import move_offsets
from conduit_dagster.state.delivery_store import end_delivery, put_progress
from conduit_dagster.state.history import record_event


def mark(
    desk: PipelineLock,
    consumer: str | None,
    offset: int,
    source: str | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Mark the records of the consumer's open delivery up to ``offset`` of ``source`` as handled; nothing is sent.

    ``force`` allows an offset before the consumer's own: the records between are sent again. Raises ``FatalError``
    (``offsets.*``) beyond the open step, backwards, out of order, or if the destination takes no single records.
    """
    opened = open_delivery(desk, consumer, change=not dry_run)
    if opened is None:
        return {"pipeline": desk.id, "consumer": consumer, "did": "held", "records": 0, "offsets": []}
    try:
        require_divisible(opened)
        _require_no_replay(opened)
        name = chosen("source", source, [span.source for span in opened.shipment.plan.ranges], desk.id)
        require_within(opened, name, offset)
        return _mark(opened, cut_at(opened, name, offset), force, dry_run)
    finally:
        opened.loop.restaged.discard()


def _require_no_replay(opened: OpenDelivery) -> None:
    if opened.shipment.plan.replay:
        raise refused(
            "offsets.replay",
            "the open step sends dead letters again: marked, they would count as delivered",
            f"run it once, then conduit-dagster dlq discard {opened.desk.id} closes letters with a note",
            node=opened.node,
        )


def _mark(opened: OpenDelivery, cut: Cut, force: bool, dry_run: bool) -> dict[str, Any]:
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
    return _told(opened, cut, "marked", delivered, _is_done(opened) and finish_step(opened))


def _forward(opened: OpenDelivery, cut: Cut) -> int:
    """Move the delivery forward; return how many of the records the destination turned out to have."""
    shipment = opened.shipment
    if opened.destination.placement in RESENDS:
        wanted = cut.place - shipment.progress.handled
        shipment.progress = after(shipment.progress, wanted, refused=wanted - cut.ahead)
        _keep(opened, cut)
        return cut.ahead
    claiming = Claiming(opened)
    before = shipment.progress.handled
    try:
        claiming.skip_to(cut.place)
    finally:
        if shipment.progress.handled > before:
            _keep(opened, cut)  # a record claimed as nacked is never sent, even if a later claim failed
    return claiming.delivered


def _is_done(opened: OpenDelivery) -> bool:
    return opened.shipment.progress.handled >= opened.shipment.staged.records


def _keep(opened: OpenDelivery, cut: Cut) -> None:
    desk, shipment = opened.desk, opened.shipment
    step, staged = shipment.plan.step, shipment.staged
    moves = opened.moves(_record_at(opened, cut, shipment.progress.handled))

    def work(connection: sa.Connection) -> None:
        put_progress(connection, desk.id, step, staged.consumer, shipment.progress)
        move_offsets(connection, desk.id, [staged.consumer], moves)
        if _is_done(opened):
            sent = staged.records - shipment.progress.refused
            end_delivery(connection, desk.id, step, staged.consumer, sent, staged.target)
        record_event(
            connection, desk.id, "marked", by=desk.by, consumer=opened.consumer, source=cut.source, step=step,
            records=len(cut.named), first=cut.named[0], last=cut.named[-1],
        )  # fmt: skip

    desk.store.transactions.run(work)


def _record_at(opened: OpenDelivery, cut: Cut, place: int) -> StagedRecord | None:
    if place == cut.place:
        return cut.following
    return next((record for number, record in enumerate(opened.records) if number == place), None)


def _told(opened: OpenDelivery, cut: Cut, did: str, delivered: int = 0, finished: bool = False) -> dict[str, Any]:
    plan, following = opened.shipment.plan, cut.following
    return {
        "pipeline": opened.desk.id,
        "consumer": opened.consumer,
        "did": did,
        "source": cut.source,
        "step": plan.step,
        "records": len(cut.named),
        "offsets": cut.named,
        "delivered": delivered,
        "next": None if following is None else offset_of(plan, following.source, following.ordinal),
        "delivery_done": _is_done(opened),
        "step_done": finished,
    }
