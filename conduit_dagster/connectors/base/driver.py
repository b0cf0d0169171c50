"""Destinations whose records are handed over by the driver itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from conduit_dagster.connectors.base.delivery import Delivery, Target
from conduit_dagster.connectors.base.record_staging import RecordStaging
from conduit_dagster.connectors.base.records import staged_records
from conduit_dagster.connectors.base.staged import StagedDestination
from conduit_dagster.record import Record


class DriverDestination(RecordStaging, StagedDestination):
    """A destination whose records are few enough for the driver: ``deliver`` gets them in order, at least once."""

    placement = "driver"

    @abstractmethod
    def deliver(self, records: Iterable[Record], delivery: Delivery) -> None:
        """Takes the delivery's records, in order. Raising fails the delivery; it is then repeated whole."""

    def publish(self, delivery: Delivery) -> Target:
        """Reads the staged records back and hands them to :meth:`deliver`."""
        self.deliver((staged.record for staged in staged_records(delivery)), delivery)
        return delivery.target
