"""Skipping records at a destination that stores delivery hashes, so that a frozen owner can't deliver them later."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from conduit_dagster.engine.delivery_hash import Names
from conduit_dagster.engine.delivery_progress import after
from conduit_dagster.engine.operate.open_delivery import OpenDelivery
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.sdk import Claim, Delivery
from conduit_dagster.state.steps import DeliveryChild

CAUSE = "an operator marks its records"


class Claiming:
    """Claims of single records as nacked; the shipment's progress moves along, in memory."""

    def __init__(self, opened: OpenDelivery) -> None:
        self._opened = opened
        self._shipment = opened.shipment
        self._names = Names(opened.desk.pipeline)
        self.delivered = 0
        """Number of records that the destination turned out to have."""

    def skip_to(self, wanted: int) -> None:
        """Skip every record before this place. If a bulk piece turns out to be delivered, it may end after it."""
        shipment = self._shipment
        if shipment.staged.records > 1:
            self._claim_whole()
        while shipment.progress.handled < wanted:
            child = shipment.left[0]
            if child.take > 1 and not child.single:
                self._divide(child)
            else:
                self._skip(child.skip)

    def _claim_whole(self) -> None:
        shipment = self._shipment
        if not shipment.is_split:
            self._split([DeliveryChild(0, shipment.staged.records, single=True)])
        # a frozen owner may publish the whole delivery until its hash is claimed as split
        if self._claim(shipment.whole(), "split"):
            self._found(shipment.staged.records - shipment.progress.handled)

    def _divide(self, child: DeliveryChild) -> None:
        shipment = self._shipment
        self._split([DeliveryChild(child.skip, child.take, single=True), *shipment.left[1:]])
        name = self._names.child(shipment.plan, shipment.consumer, child.skip, child.take)
        if self._claim(shipment.child(name, child.skip, child.take), "split"):
            self._found(child.take)

    def _skip(self, place: int) -> None:
        shipment = self._shipment
        name = self._names.child(shipment.plan, shipment.consumer, place, 1)
        if self._claim(shipment.child(name, place, 1), "nacked"):
            self._found(1)
        else:
            shipment.progress = after(shipment.progress, 1, refused=1)

    def _found(self, records: int) -> None:
        self.delivered += records
        self._shipment.progress = after(self._shipment.progress, records)

    def _split(self, pending: Sequence[DeliveryChild]) -> None:
        # recorded first, then claimed, as the engine does: nothing of a piece is decided before
        shipment = self._shipment
        shipment.progress = msgspec.structs.replace(shipment.progress, pending=list(pending), split=True)
        store = self._opened.desk.store.deliveries
        store.split(shipment.plan.step, shipment.consumer, shipment.progress, CAUSE)

    def _claim(self, delivery: Delivery, state: Claim) -> bool:
        """Claim a delivery; return whether it turns out to be delivered."""
        opened = self._opened
        return blamed(opened.node, opened.destination.claim, delivery, state) == "delivered"
