"""The records of one prepared delivery by their place in it: for pieces, nacks and operators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from conduit_dagster.engine.origins import RecordOrigin, keeps_origins, read_origins
from conduit_dagster.engine.restage import Restaged
from conduit_dagster.engine.shipment import Shipment
from conduit_dagster.record import COLLECTION, SOURCE_CONNECTOR_ID, Record
from conduit_dagster.sdk import Delivery, StagedDestination, StagedRecord, staged_records

T = TypeVar("T")


class DeliveryRecords:
    """What a delivery holds, read from its staging.

    Whole records of a destination that stages something else are staged again, once, where source and code still give
    the bytes that were prepared; else a record is what its destination would have been given, as it was staged
    (DELIVERY.md, When the pipeline changes).
    """

    def __init__(self, destination: object, shipment: Shipment, restaged: Restaged, pipeline: str) -> None:
        self._shipment, self._restaged, self._pipeline = shipment, restaged, pipeline
        self._destination = destination if isinstance(destination, StagedDestination) else None
        self._is_traced = self._destination is not None and keeps_origins(self._destination)
        self._origins = _InOrder(lambda: read_origins(shipment.staged))
        self._records: _InOrder[StagedRecord] | None = None
        self._whole: Delivery | None = None
        self._is_asked = False

    def origin(self, place: int) -> tuple[str, int]:
        """The source of a record, and its source record's place in the step's range. Reads staging only.

        Places may go back by two at most. Raises ``LookupError`` where there is no such record.
        """
        if self._is_traced:
            return self._origins.at(place)[:2]
        record = self._of_records().at(place)
        return record.source, record.ordinal

    def at(self, place: int) -> StagedRecord:
        """The record, whole or as it was staged; otherwise as :meth:`origin`."""
        if not self._is_traced or self._restaged_whole() is not None:
            return self._of_records().at(place)
        return self._as_staged(place, self._origins.at(place))

    def __iter__(self) -> Iterator[StagedRecord]:
        """All of them, in order."""
        if not self._is_traced or self._restaged_whole() is not None:
            yield from staged_records(self.delivery())
            return
        for place, origin in enumerate(read_origins(self._shipment.staged)):
            yield self._as_staged(place, origin)

    def delivery(self) -> Delivery:
        """The delivery whose parts hold whole records."""
        return self._whole or self._shipment.whole()

    def _of_records(self) -> _InOrder[StagedRecord]:
        if self._records is None:
            self._records = _InOrder(lambda: staged_records(self.delivery()))
        return self._records

    def _restaged_whole(self) -> Delivery | None:
        if not self._is_asked:
            self._is_asked, self._whole = True, self._restaged.records(self._shipment)
        return self._whole

    def _as_staged(self, place: int, origin: RecordOrigin) -> StagedRecord:
        """From staging alone: the row as it would have been delivered, under its own position."""
        assert self._destination is not None, "only staged destinations keep origins"
        row = self._destination.staged_row(self._shipment.whole(), place)
        metadata = {SOURCE_CONNECTOR_ID: f"{self._pipeline}:{origin.source}"}
        metadata |= {COLLECTION: origin.namespace} if origin.namespace else {}
        record = row or Record(origin.position, metadata)
        record.position, record.metadata = origin.position, metadata
        return StagedRecord(origin.source, origin.ordinal, record)


class _InOrder(Generic[T]):
    """Things by their place, read once from the front: places never go back by more than two."""

    def __init__(self, read: Callable[[], Iterator[T]]) -> None:
        self._read = read
        self._things: Iterator[T] | None = None
        self._next = 0
        self._kept: deque[tuple[int, T]] = deque(maxlen=3)

    def at(self, place: int) -> T:
        """The thing. Raises ``LookupError`` where there is none, or it was passed."""
        if self._things is None:
            self._things = self._read()
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
