"""Operator's exception to the rule that offsets never go back: records of the open step are sent again."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.engine.offset_updates import is_joined
from conduit_dagster.engine.operate.open_delivery import OpenDelivery
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.engine.operate.seek import Cut
from conduit_dagster.engine.operate.writes import put_offset
from conduit_dagster.state.delivery_store import put_progress
from conduit_dagster.state.history import record_event
from conduit_dagster.state.steps import DeliveryChild, DeliveryProgress

RESENDS: Final = ("direct", "driver")
"""Placements of destinations that store no delivery hash: they take a record any number of times."""


def require_resending(opened: OpenDelivery, cut: Cut, force: bool) -> None:
    """Raise ``FatalError``: ``offsets.kept_once``, ``offsets.refused_before``, without ``force`` ``.backwards``."""
    many = f"{len(cut.named)} records (offsets {cut.named[0]} to {cut.named[-1]})"
    rewind = f"conduit-dagster positions rewind {opened.desk.id} {cut.source}"
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


def set_back(opened: OpenDelivery, cut: Cut) -> None:
    """Make the cut's record the delivery's next one, although it is handled."""
    desk, shipment = opened.desk, opened.shipment
    # acks that a job made durable would move the delivery forward again
    for name in storage.files(shipment.staged.staging):
        if name.startswith("acks-"):
            storage.remove(storage.join(shipment.staged.staging, name))
    shipment.progress = _before(shipment.progress, cut.place)
    offsets = _offsets(opened, cut)

    def work(connection: sa.Connection) -> None:
        put_progress(connection, desk.id, shipment.plan.step, opened.consumer, shipment.progress)
        for source, upto in offsets:
            put_offset(connection, desk.id, opened.consumer, source, upto)
        record_event(
            connection, desk.id, "set_back", by=desk.by, consumer=opened.consumer, source=cut.source,
            step=shipment.plan.step, records=len(cut.named), first=cut.named[0], last=cut.named[-1],
        )  # fmt: skip

    desk.store.transactions.run(work)


def _before(progress: DeliveryProgress, place: int) -> DeliveryProgress:
    pending = list(progress.pending)
    if progress.split:
        pending.insert(0, DeliveryChild(place, progress.handled - place, single=True))
    return DeliveryProgress(place, pending, progress.split)


def _offsets(opened: OpenDelivery, cut: Cut) -> list[tuple[str, int]]:
    """Return the new offsets of the next record's source and of the sources after it."""
    following, found = cut.following, list[tuple[str, int]]()
    assert following is not None  # the cut lies before what is handled
    behind = False
    for span in opened.shipment.plan.ranges:
        behind = behind or span.source == following.source
        # the offsets of a join's members move with the whole step only
        if behind and not is_joined(opened.shipment.plan):
            ordinal = following.ordinal if span.source == following.source else 0
            found.append((span.connector, span.offset + ordinal - 1))
    return found
