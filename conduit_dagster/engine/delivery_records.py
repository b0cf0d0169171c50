"""Random access to the records of a prepared delivery by place: for children, nacks and operators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Generic, TypeVar

from conduit_dagster.engine.delivery_progress import Shipment
from conduit_dagster.engine.origins import RecordOrigin, keeps_origins, read_origins
from conduit_dagster.engine.restage import Restaged
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import COLLECTION, SOURCE_CONNECTOR_ID, Record
from conduit_dagster.sdk import Delivery, StagedDestination, StagedRecord, staged_records

T = TypeVar("T")


class DeliveryRecords:
    """Records of a delivery, read from its staging (DELIVERY.md, When the pipeline changes).

    If the destination does not stage whole records, they are staged again, once, provided source and code still produce
    the prepared bytes. Otherwise a record is returned as it was staged, that is, as its destination would have received
    it.
    """

    def __init__(self, destination: object, shipment: Shipment, restaged: Restaged, pipeline: str) -> None:
        self._shipment, self._restaged, self._pipeline = shipment, restaged, pipeline
        self._destination = destination if isinstance(destination, StagedDestination) else None
        self._is_traced = self._destination is not None and keeps_origins(self._destination)
        self._origins = _InOrder(lambda first: islice(read_origins(shipment.staged), first, None))
        self._records: _InOrder[StagedRecord] | None = None

    def origin(self, place: int) -> tuple[str, int]:
        """Return the source of a record, and its source record's place in the step's range. Reads staging only.

        Cheap in ascending order; going back by more than two reopens the staging. Raises ``LookupError`` if the record
        does not exist.
        """
        if self._is_traced:
            return self._origins.at(place)[:2]
        record = self._of_records().at(place)
        return record.source, record.ordinal

    def at(self, place: int) -> StagedRecord:
        """Return the record, whole or as it was staged; at the same cost as :meth:`origin`."""
        if not self._is_traced or self._whole is not None:
            return self._of_records().at(place)
        return self._as_staged(place, self._origins.at(place))

    def __iter__(self) -> Iterator[StagedRecord]:
        """Iterate over all records, in order."""
        if not self._is_traced or self._whole is not None:
            yield from staged_records(self.delivery())
            return
        for place, origin in enumerate(read_origins(self._shipment.staged)):
            yield self._as_staged(place, origin)

    def delivery(self) -> Delivery:
        """Return the delivery whose parts hold whole records."""
        return self._whole or self._shipment.whole()

    def _of_records(self) -> _InOrder[StagedRecord]:
        if self._records is None:
            self._records = _InOrder(self._records_from)
        return self._records

    def _records_from(self, first: int) -> Iterator[StagedRecord]:
        whole = self.delivery()
        return staged_records(replace(whole, skip=first, take=whole.records - first) if first else whole)

    @lazy_property
    def _whole(self) -> Delivery | None:
        """The whole records, staged again, for a destination that does not stage them."""
        return self._restaged.records(self._shipment) if self._is_traced else None

    def _as_staged(self, place: int, origin: RecordOrigin) -> StagedRecord:
        """Return the row from staging alone, as it would have been delivered, with the record's position."""
        assert self._destination is not None, "only staged destinations keep origins"
        row = self._destination.staged_row(self._shipment.whole(), place)
        metadata = {SOURCE_CONNECTOR_ID: node_id(self._pipeline, origin.source)}
        metadata |= {COLLECTION: origin.namespace} if origin.namespace else {}
        record = row or Record(origin.position, metadata)
        # keep the row's own metadata, for example that it is a truncate
        record.position, record.metadata = origin.position, record.metadata | metadata
        return StagedRecord(origin.source, origin.ordinal, record)


class _InOrder(Generic[T]):
    """Items by place, read in order; a place before the last three reopens the reader there."""

    def __init__(self, read: Callable[[int], Iterator[T]]) -> None:
        self._read = read
        self._things: Iterator[T] | None = None
        self._next = 0
        self._kept: deque[tuple[int, T]] = deque(maxlen=3)

    def at(self, place: int) -> T:
        """Return the item. Raises ``LookupError`` if it does not exist."""
        if self._things is None or place < self._next - len(self._kept):
            self._things, self._next = self._read(place), place
            self._kept.clear()
        while self._next <= place:
            thing = next(self._things, None)
            if thing is None:
                break
            self._kept.append((self._next, thing))
            self._next += 1
        for number, thing in self._kept:
            if number == place:
                return thing
        raise LookupError(f"record {place} of the delivery is not there")
