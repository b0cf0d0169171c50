"""A prepared step staged again, because its staging was lost, or because its records are needed one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Generic, TypeVar

import msgspec
import structlog

from conduit_dagster import storage
from conduit_dagster.engine.delivery_errors import LOG_LOST, differs, log_lost, range_lost, unreadable, ways_out
from conduit_dagster.engine.delivery_progress import Shipment, as_delivery
from conduit_dagster.engine.origins import RecordOrigin, keeps_origins, read_origins
from conduit_dagster.engine.registering import changed_source
from conduit_dagster.engine.stage_job import SourceFailure
from conduit_dagster.engine.stager import Staged, Stager, from_rows
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import COLLECTION, SOURCE_CONNECTOR_ID, Record
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.codes import tells_loss
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.sdk import MISCOUNTED, Delivery, StagedDestination, StagedRecord, staged_records
from conduit_dagster.spark.jobs import JobCancelled
from conduit_dagster.state.lease import LeaseLost
from conduit_dagster.state.steps import Decision, Part, Plan, StagedDelivery

log = structlog.get_logger("conduit.engine")


class Restaged:
    """Stager of prepared steps, from the same splits; the decision does not change."""

    def __init__(self, context: StepContext, stager: Stager) -> None:
        self._context, self._stager = context, stager
        self._made: list[Staged] = []
        self._known: dict[tuple[int, str], Staged | None] = {}

    def again(self, plan: Plan, decision: Decision, lost: list[StagedDelivery]) -> list[StagedDelivery]:
        """Return the deliveries with new parts. Raises ``FatalError`` if their digests are not the prepared ones."""
        ways = ways_out(self._context.name, plan, decision, [delivery.consumer for delivery in lost])
        try:
            staged = self._stage(plan, decision, ways=ways)
        except FatalError as error:
            if error.code == MISCOUNTED:
                raise differs(plan, lost[0], ways) from error
            if error.code in LOG_LOST:
                raise log_lost(plan, error, ways) from error
            raise
        return [self._same(plan, old, staged, ways) for old in lost]

    def _same(self, plan: Plan, old: StagedDelivery, staged: Staged, ways: str) -> StagedDelivery:
        made = self._made_of(old, staged)
        if made is None:
            raise differs(plan, old, ways)
        return made

    @staticmethod
    def _made_of(old: StagedDelivery, staged: Staged) -> StagedDelivery | None:
        """Return the delivery as staged again; None if its bytes differ from the prepared ones."""
        parts, origins = staged.share(old.consumer)
        if [content(part) for part in (*parts, *origins)] != [content(part) for part in (*old.parts, *old.origins)]:
            return None
        return msgspec.structs.replace(old, staging=staged.staging[old.consumer], parts=parts, origins=origins)

    def gives_same(self, shipment: Shipment) -> bool:
        """Return whether source and code still produce the prepared bytes: True for a step prepared by this run.

        A step of an earlier run is staged again to find out, once.
        """
        return not shipment.is_recovered or self._verified(shipment) is not None

    def records(self, shipment: Shipment) -> Delivery | None:
        """Return a delivery of whole records, for a destination that does not stage them; staged at the first call.

        None if source, code or settings no longer produce the prepared bytes, or if the source can't be read.
        """
        old, staged = shipment.staged, self._verified(shipment)
        if staged is None:
            return None
        records = staged.records(old.consumer)
        if [part.records for part in records] != [part.records for part in old.parts]:
            return None
        folder = staged.staging[old.consumer]
        return as_delivery(msgspec.structs.replace(old, staging=folder, parts=records), shipment.plan.step)

    def _verified(self, shipment: Shipment) -> Staged | None:
        asked = shipment.plan.step, shipment.consumer
        if asked not in self._known:
            self._known[asked] = self._stage_verified(shipment)
        return self._known[asked]

    def _stage_verified(self, shipment: Shipment) -> Staged | None:
        plan, old = shipment.plan, shipment.staged
        try:
            # shares that are staged as whole records anyway are staged normally
            staged = self._stage(plan, shipment.decision, *([old.consumer] if old.origins else []))
        except (JobCancelled, LeaseLost):
            raise
        except (ConduitError, OSError) as error:
            log.info("a prepared step can't be read again", step=plan.step, consumer=old.consumer, cause=str(error))
            return None
        return staged if self._made_of(old, staged) is not None else None

    def _stage(self, plan: Plan, decision: Decision, *as_records: str, ways: str = "") -> Staged:
        context = self._context
        if changed := changed_source(context.pipeline, plan, context.state):
            raise unreadable(plan, changed, context.node(changed))
        self._require_ranges(plan, ways)
        tasks = self._stager.relocated(from_rows(decision.splits))
        staged = self._stager.stage(plan, tasks, as_records, again=True)
        self._made.append(staged)
        if staged.failures:
            raise self._failed(plan, staged.failures[0], ways)
        return staged

    def _failed(self, plan: Plan, failure: SourceFailure, ways: str) -> ConduitError:
        """Return the error of a source that can't be read again; fatal, with the way on, if it has lost the range."""
        error, [span] = failure.error.as_error(), [one for one in plan.ranges if one.source == failure.source]
        # those of the log have ways of their own
        if error.code.startswith("log.") or not tells_loss(error.code):
            return error
        node = self._context.pipeline.source_node(span.source)
        is_gone = error.fatal or blamed(node.node, node.source.gives_up, span.start, span.end)
        return range_lost(plan, error, ways) if is_gone else error

    def _require_ranges(self, plan: Plan, ways: str) -> None:
        """Raise ``FatalError`` if a source has lost a range: reading it would only look like a rotation."""
        for span in plan.ranges:
            node = self._context.pipeline.source_node(span.source)
            try:
                blamed(node.node, node.source.verify, span.start, span.end)
            except FatalError as error:
                raise range_lost(plan, error, ways) from error

    def discard(self) -> None:
        """Remove everything that was staged again, once the step is done."""
        for staged in self._made:
            self._stager.discard(staged.staging)
        self._made.clear()
        self._known.clear()


def is_staged(delivery: StagedDelivery) -> bool:
    """Return whether all staged files of a delivery exist with the bytes that were prepared."""
    return all(
        _is_whole(storage.join(delivery.staging, part.name), part) for part in [*delivery.parts, *delivery.origins]
    )


def _is_whole(staged: str, part: Part) -> bool:
    # a disk that failed, or a power failure, may leave the length and other bytes
    return storage.size(staged) == part.bytes and storage.digest(staged)[1] == part.sha256


def content(part: Part) -> tuple[int, int, str]:
    """Return the properties of a part that must be equal when it is staged again: all but its name."""
    return part.records, part.bytes, part.sha256


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
