"""Destinations that the driver publishes to."""

from __future__ import annotations

from abc import abstractmethod

from conduit_dagster.connectors.base.delivery import Delivery, Target
from conduit_dagster.connectors.base.destination import Destination
from conduit_dagster.record import Record


class StagedDestination(Destination):
    """Tasks stage with a writer of its own, the driver publishes each delivery all or nothing under its hash.

    What ``publish`` raises decides what becomes of the delivery (DELIVERY.md, When publishing fails): a
    ``ConduitError`` or an ``OSError`` is an outage, never a nack: the run stops and repeats the same delivery.
    :class:`Rejected` names a record, which is nacked. Anything else is an unclassified bulk error: where the
    destination is ``divisible`` the delivery is sent again as children.
    """

    placement = "staged"

    def staged_row(self, delivery: Delivery, place: int) -> Record | None:
        """What the delivery's record at this place holds, from its staged parts alone; None where they can't tell.

        Asked of a ``divisible`` destination that refuses a record of a step whose source or code has changed since it
        was prepared: the dead letter is made of it. Only payloads, key and operation count.
        """
        return None

    @abstractmethod
    def publish(self, delivery: Delivery) -> Target:
        """Makes it visible and durable, all or nothing; may be repeated. Gives the target for the next delivery."""
