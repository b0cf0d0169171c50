"""``offsets mark --offset``: count single records of the open step as handled, in any order (reference 4)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conduit_dagster.engine.delivery_progress import past_marked, with_marks
from conduit_dagster.engine.offset_updates import offset_of
from conduit_dagster.engine.operate.mark import RESENDS, keep_marked, marked_facts, require_no_replay, require_within
from conduit_dagster.engine.operate.open_delivery import (
    NackClaims,
    OpenDelivery,
    finish_step,
    open_delivery,
    require_divisible,
)
from conduit_dagster.engine.operate.operator_errors import chosen
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
from conduit_dagster.sdk import StagedRecord


@dataclass(frozen=True)
class RecordsToMark:
    """Unhandled records of the open delivery, by place."""

    source: str
    offsets: dict[int, int]
    """Place to offset; if a processor split a record, several places have the same offset."""


def mark_records(
    lock: PipelineLock,
    consumer: str | None,
    offsets: Sequence[range],
    source: str | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Mark single records of the consumer's open delivery as handled; nothing is sent, and no other record changes.

    The consumer's offset moves over contiguous handled records only; a marked record further on is skipped when its
    turn comes. Records already handled or filtered are left unchanged. Raises ``FatalError`` (``offsets.*``) for an
    offset outside of the open step, or if the destination takes no single records.
    """
    opened = open_delivery(lock, consumer, change=not dry_run)
    if opened is None:
        return {"pipeline": lock.id, "consumer": consumer, "did": "held", "records": 0, "offsets": []}
    try:
        require_divisible(opened)
        require_no_replay(opened)
        name = chosen("source", source, [span.source for span in opened.shipment.plan.ranges], lock.id)
        for wanted in offsets:
            for offset in (wanted[0], wanted[-1]):
                require_within(opened, name, offset, is_record=True)
        return _Marking(opened, _found(opened, name, offsets)).run(dry_run)
    finally:
        opened.loop.restaged.discard()


def _found(opened: OpenDelivery, source: str, wanted: Sequence[range]) -> RecordsToMark:
    places = {
        place: offset
        for place, offset, record in _places(opened)
        if record.source == source and any(offset in some for some in wanted) and _is_waiting(opened, place, record)
    }
    return RecordsToMark(source, places)


def _places(opened: OpenDelivery) -> Iterator[tuple[int, int, StagedRecord]]:
    plan = opened.shipment.plan
    for place, record in enumerate(opened.records):
        yield place, offset_of(plan, record.source, record.ordinal), record


def _is_waiting(opened: OpenDelivery, place: int, record: StagedRecord) -> bool:
    progress = opened.shipment.progress
    is_ahead = place <= progress.namespaces.get(record.record.collection, -1)
    return place >= progress.handled and place not in progress.marked and not is_ahead


class _Marking:
    def __init__(self, opened: OpenDelivery, records: RecordsToMark) -> None:
        self._opened, self._records, self._shipment = opened, records, opened.shipment

    def run(self, dry_run: bool) -> dict[str, Any]:
        if dry_run or not self._records.offsets:
            return self._told("marked" if self._records.offsets else "nothing", as_marked=self._records.offsets)
        delivered = self._mark()
        return self._told("marked", delivered, self._opened.is_done and finish_step(self._opened))

    def _mark(self) -> int:
        """Mark the records; return how many of them the destination already had."""
        shipment = self._shipment
        if self._opened.destination.placement in RESENDS:
            shipment.progress = with_marks(shipment.progress, *self._records.offsets)
            self._keep()
            return 0
        claiming, before = NackClaims(self._opened), shipment.progress
        try:
            for place in self._records.offsets:
                claiming.mark(place)
        finally:
            if shipment.progress != before:
                self._keep()  # a record claimed as nacked is never sent, even if a later claim failed
        return claiming.delivered

    def _keep(self) -> None:
        progress, marked = self._shipment.progress, dict[str, Any]()
        places = {*progress.marked}
        # a claim may have failed: the records from there on are not marked
        done = [at for place, at in self._records.offsets.items() if place < progress.handled or place in places]
        if done:
            named = sorted({*done})
            marked = {"records": len(done), "first": named[0], "last": named[-1], "offsets": spans(named)}
        keep_marked(self._opened, self._at(progress.handled), self._records.source, **marked)

    def _next(self, as_marked: Collection[int]) -> int:
        """Return the first place that is neither handled nor marked. ``as_marked``: what a dry run would mark."""
        progress = self._shipment.progress
        marked = sorted({*progress.marked, *as_marked})
        return past_marked(msgspec.structs.replace(progress, marked=marked)).handled

    def _at(self, wanted: int) -> StagedRecord | None:
        return next((record for place, _, record in _places(self._opened) if place == wanted), None)

    def _told(
        self, did: str, delivered: int = 0, finished: bool = False, as_marked: Collection[int] = ()
    ) -> dict[str, Any]:
        opened, records = self._opened, self._records
        # the staging of a done step is removed
        following = None if opened.is_done else self._at(self._next(as_marked))
        facts = marked_facts(opened, records.source, sorted({*records.offsets.values()}), following)
        return {**facts, "did": did, "records": len(records.offsets), "delivered": delivered, "step_done": finished}


def spans(offsets: Sequence[int]) -> str:
    """Format ascending offsets for ``--offset``, such as ``9-11, 14``."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
