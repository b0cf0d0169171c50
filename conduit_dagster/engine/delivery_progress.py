"""A delivery on its way to its destination: its hash, its progress, and its children."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import msgspec
import rfc8785

from conduit_dagster.engine.acks import Acked
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.sdk import Delivery
from conduit_dagster.state.steps import Decision, DeliveryChild, DeliveryProgress, Plan, Range, StagedDelivery


@dataclass
class Shipment:
    """One consumer's delivery of a prepared step, with its progress."""

    plan: Plan
    decision: Decision
    staged: StagedDelivery
    progress: DeliveryProgress = field(default_factory=DeliveryProgress)
    is_recovered: bool = False
    """Whether an earlier run prepared it: source and code may have changed since."""
    dropped: int = 0
    """Number of its records that failed, and are never sent again (at-most-once)."""

    @property
    def consumer(self) -> str:
        """Id of the consumer that receives it."""
        return self.staged.consumer

    @property
    def delivered(self) -> int:
        """Number of records that the destination has once all are handled."""
        return self.staged.records - self.missed

    @property
    def missed(self) -> int:
        """Number of records that the destination never gets: refused, marked or dropped."""
        return self.progress.refused + self.dropped

    @property
    def left(self) -> list[DeliveryChild]:
        """Children that are still to be sent."""
        done, total = self.progress.handled, self.staged.records
        return self.progress.pending or ([DeliveryChild(done, total - done)] if done < total else [])

    def whole(self) -> Delivery:
        """Return the whole delivery, under its own hash."""
        return as_delivery(self.staged, self.plan.step)

    def child(self, name: str, child: DeliveryChild) -> Delivery:
        """Return a child. A delivery of one record is its own child (DELIVERY.md, When publishing fails)."""
        if self.staged.records == 1:
            return self.whole()
        without = tuple(child.without)
        return replace(self.whole(), hash=name, skip=child.skip, take=child.take, without=without)


def as_delivery(staged: StagedDelivery, step: int) -> Delivery:
    """Return a stored delivery in the form that destinations receive."""
    parts = tuple(staged.parts)
    return Delivery(staged.hash, step, staged.consumer, staged.staging, parts, staged.target, staged.skip)


def after(progress: DeliveryProgress, places: int, refused: int = 0) -> DeliveryProgress:
    """Return the progress after the next ``places`` records are handled, ``refused`` of them by a nack."""
    pending = list(progress.pending)
    left = places
    while pending and left:
        first = pending.pop(0)
        if first.take > left:
            pending.insert(0, part_of(first, first.skip + left, first.take - left))
            break
        left -= first.take
    handled = progress.handled + places
    marked = [place for place in progress.marked if place >= handled]
    return msgspec.structs.replace(
        progress, handled=handled, pending=pending, refused=progress.refused + refused, marked=marked
    )


def part_of(child: DeliveryChild, skip: int, take: int) -> DeliveryChild:
    """Return a part of a child's range, leaving out the same records as the child."""
    without = [place for place in child.without if skip <= place < skip + take]
    return DeliveryChild(skip, take, child.single, without)


def trimmed(child: DeliveryChild) -> DeliveryChild:
    """Return the child from its first to its last record: records left out at its ends are not part of its name.

    Its ``take`` is 0 if it leaves out all of them.
    """
    left_out, skip, end = frozenset(child.without), child.skip, child.skip + child.take
    while skip < end and skip in left_out:
        skip += 1
    while end > skip and end - 1 in left_out:
        end -= 1
    return part_of(child, skip, end - skip)


def places_of(child: DeliveryChild) -> Sequence[int]:
    """Return the places of a child's records in the delivery, in order."""
    every = range(child.skip, child.skip + child.take)
    left_out = frozenset(child.without)
    return [place for place in every if place not in left_out] if left_out else every


def with_marks(progress: DeliveryProgress, *places: int) -> DeliveryProgress:
    """Return the progress with more records marked, advanced past marked records at its front (CASES C12).

    The offset never passes a record that is neither delivered nor marked.
    """
    return past_marked(msgspec.structs.replace(progress, marked=sorted({*progress.marked, *places})))


def past_marked(progress: DeliveryProgress) -> DeliveryProgress:
    """Return the progress advanced past marked records at its front."""
    marked = frozenset(progress.marked)
    places = next(number for number in count() if progress.handled + number not in marked)
    return after(progress, places, refused=places) if places else progress


def before_marked(child: DeliveryChild, progress: DeliveryProgress) -> DeliveryChild:
    """Return the beginning of a child, up to the next marked record. The child's first record must be unmarked.

    Records that the child itself leaves out do not end it.
    """
    left_out, end = frozenset(child.without), child.skip + child.take
    stop = next((place for place in progress.marked if place > child.skip and place not in left_out), end)
    return trimmed(part_of(child, child.skip, min(stop - child.skip, child.take)))


def progress_of(acked: Acked, known: DeliveryProgress) -> DeliveryProgress:
    """Return the progress advanced by a job's acks.

    It never moves back: records known as acked ahead of it are not sent again.
    """
    further = after(known, max(0, acked.handled - known.handled))
    ahead = dict(known.namespaces)
    for name, (place, _, _) in acked.namespaces.items():
        ahead[name] = max(place, ahead.get(name, -1))
    kept = {name: place for name, place in ahead.items() if place >= further.handled}
    return msgspec.structs.replace(further, namespaces=kept)


def with_refused(
    progress: DeliveryProgress, child: DeliveryChild, nacked: Sequence[int], apart: Sequence[int], skips: bool
) -> DeliveryProgress:
    """Return the progress after these records of a child are nacked together: they are skipped from now on.

    ``child``: the beginning of the unsent rest. ``apart``: records that become children of their own. ``skips``:
    whether the records between are still sent in one delivery.
    """
    first = progress.pending[0] if progress.pending else child
    if skips and not child.single:
        child = DeliveryChild(child.skip, child.take, False, sorted({*child.without, *nacked}))
    parts = [child]
    for place in apart:
        parts = [*parts[:-1], *around(parts[-1], place)]
    pending = [*parts, *_behind(first, child), *progress.pending[1:]] if progress.pending else []
    marked = sorted({*progress.marked, *nacked})
    return past_marked(msgspec.structs.replace(progress, pending=pending, marked=marked))


def pieces(child: DeliveryChild, bisect: bool) -> list[DeliveryChild]:
    """Split a range after a bulk error: into single records, or into halves."""
    if not bisect:
        return [DeliveryChild(child.skip, child.take, single=True)]
    half = child.take // 2
    return [part_of(child, child.skip, half), part_of(child, child.skip + half, child.take - half)]


def around(child: DeliveryChild, place: int) -> list[DeliveryChild]:
    """Split a range into the records before a place, the record there, and those after it."""
    behind = child.skip + child.take - place - 1
    three = [
        part_of(child, child.skip, place - child.skip), DeliveryChild(place, 1), part_of(child, place + 1, behind)
    ]  # fmt: skip
    return [piece for piece in three if piece.take]


def split_into(
    progress: DeliveryProgress, left: list[DeliveryChild], child: DeliveryChild, parts: list[DeliveryChild]
) -> DeliveryProgress:
    """Return the progress with ``child``, which is the first of ``left`` or its beginning, replaced by ``parts``."""
    pending = [*parts, *_behind(left[0], child), *left[1:]]
    return msgspec.structs.replace(progress, pending=pending, split=True)


def _behind(piece: DeliveryChild, beginning: DeliveryChild) -> list[DeliveryChild]:
    """Return the part of a piece after its beginning; nothing if that is all of it."""
    end = beginning.skip + beginning.take
    rest = part_of(piece, end, piece.skip + piece.take - end)
    return [rest] if rest.take else []


_EXACT = 2**53 - 1


def delivery_hash(
    *,
    kind: Literal["data", "dlq"],
    pipeline: str,
    destination: str,
    sources: Sequence[dict[str, Any]],
    skip: int = 0,
    take: int | None = None,
    without: Sequence[int] = (),
) -> str:
    """Compute the SHA-256 over canonical JSON (RFC 8785), in hex.

    Independent of attempt, epoch, run, time, settings, processors, partitioning and batch limits: the same range of the
    same source gives the same hash. ``sources`` are objects of ``source, generation, start, end``. ``skip`` and
    ``take`` select a child of a delivery; a null ``take`` means the whole delivery. ``without`` lists the places of
    that range that the child leaves out; it is omitted if empty.
    """
    name: dict[str, Any] = {
        "version": 1,
        "kind": kind,
        "pipeline": pipeline,
        "destination": destination,
        "sources": list(sources),
        "skip": skip,
        "take": take,
    }
    if without:
        name["without"] = list(without)
    return hashlib.sha256(rfc8785.dumps(_exact(name))).hexdigest()


def _exact(value: Any) -> Any:
    """Replace integers beyond 2^53 (such as inodes), which canonical JSON can't represent, by their decimal text."""
    if isinstance(value, dict):
        return {str(k): _exact(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(v) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value


LETTERS: int = 10**12
"""Start of the number space for dead letters found at publishing. Their skip counts records of the step's range,
separately from the step's own dead-letter delivery; otherwise two deliveries of letters would share a hash.
"""


class DeliveryHashes:
    """Hashes of deliveries and their children. The same range of the same source gives the same hash."""

    def __init__(self, pipeline: CompiledPipeline) -> None:
        self._pipeline = pipeline

    def with_hashes(self, plan: Plan) -> Plan:
        """Return the plan with a hash per consumer; the empty name holds the step's own. Computed once and stored."""
        sources = self._sources(plan.ranges)
        hashes = {name: self._hash(name, sources) for name in ("", *self._pipeline.consumers)}
        return msgspec.structs.replace(plan, named=sources, hashes=hashes)

    def child(self, plan: Plan, consumer: str, child: DeliveryChild) -> str:
        """Return the hash of a child: a range of a delivery's records, possibly with some left out."""
        part = {"skip": child.skip, "take": child.take, "without": child.without}
        return self._hash(consumer, plan.named or self._sources(plan.ranges), **part)

    def delivery(self, shipment: Shipment, child: DeliveryChild) -> Delivery:
        """Return a child of a delivery under its own hash."""
        return shipment.child(self.child(shipment.plan, shipment.consumer, child), child)

    def _sources(self, ranges: Sequence[Range]) -> list[dict[str, Any]]:
        return [self._source(span) for span in ranges]

    def _source(self, span: Range) -> dict[str, Any]:
        place = self._pipeline.source_node(span.source).source.place
        start, end = place(span.start), place(span.end)
        return {"source": span.source, "generation": span.generation, "start": start, "end": end}

    def _hash(self, consumer: str, sources: list[dict[str, Any]], **part: Any) -> str:
        kind: Literal["data", "dlq"] = "dlq" if consumer == DEAD_LETTERS else "data"
        name = self._pipeline.program.pipeline
        return delivery_hash(kind=kind, pipeline=name, destination=consumer, sources=sources, **part)
