"""Progress of a delivery to its destination."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from conduit_dagster.engine.acks import Acked
from conduit_dagster.sdk import AlreadyClaimed, Delivery, Rejected
from conduit_dagster.state.steps import Decision, DeliveryChild, DeliveryProgress, Plan, StagedDelivery


@dataclass
class Shipment:
    """One consumer's delivery of a prepared step, with its progress."""

    plan: Plan
    decision: Decision
    staged: StagedDelivery
    progress: DeliveryProgress = field(default_factory=DeliveryProgress)
    is_recovered: bool = False
    """Whether an earlier run prepared it: source and code may have changed since."""

    @property
    def consumer(self) -> str:
        """Id of the consumer that receives it."""
        return self.staged.consumer

    @property
    def is_split(self) -> bool:
        """Whether it is sent as children. Stored while the delivery is open, so that it is not split again."""
        return self.progress.split

    @property
    def delivered(self) -> int:
        """Number of records that the destination has once all are handled: neither refused nor marked."""
        return self.staged.records - self.progress.refused

    @property
    def left(self) -> list[DeliveryChild]:
        """Parts that are still to be sent."""
        done, total = self.progress.handled, self.staged.records
        return self.progress.pending or ([DeliveryChild(done, total - done)] if done < total else [])

    def whole(self) -> Delivery:
        """Return the whole delivery, under its own hash."""
        return as_delivery(self.staged, self.plan.step)

    def child(self, name: str, skip: int, take: int) -> Delivery:
        """Return a part of it. A delivery of one record is its own child (DELIVERY.md, When publishing fails)."""
        if self.staged.records == 1:
            return self.whole()
        staged = self.staged
        return Delivery(
            name, self.plan.step, staged.consumer, staged.staging, tuple(staged.parts), staged.target, skip, take
        )


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
            pending.insert(0, DeliveryChild(first.skip + left, first.take - left, first.single))
            break
        left -= first.take
    handled = progress.handled + places
    marked = [place for place in progress.marked if place >= handled]
    return msgspec.structs.replace(
        progress, handled=handled, pending=pending, refused=progress.refused + refused, marked=marked
    )


def with_mark(progress: DeliveryProgress, place: int) -> DeliveryProgress:
    """Return the progress with one more record marked; it moves past the records at its front that are marked.

    The offset never passes a record that is neither delivered nor marked (CASES C12).
    """
    return past_marked(msgspec.structs.replace(progress, marked=sorted({*progress.marked, place})))


def past_marked(progress: DeliveryProgress) -> DeliveryProgress:
    """Return the progress moved past marked records at its front."""
    while progress.handled in progress.marked:
        progress = after(progress, 1, refused=1)
    return progress


def before_marked(child: DeliveryChild, progress: DeliveryProgress) -> DeliveryChild:
    """Return the beginning of a child whose first record is to be sent, up to the next record that is marked."""
    stop = next((place for place in progress.marked if place > child.skip), child.skip + child.take)
    return DeliveryChild(child.skip, min(stop - child.skip, child.take), child.single)


def progress_of(acked: Acked, known: DeliveryProgress) -> DeliveryProgress:
    """Return the progress advanced by a job's acks.

    It never goes back: what an earlier run knew to be ahead is not sent again.
    """
    further = after(known, max(0, acked.handled - known.handled))
    ahead = dict(known.namespaces)
    for name, (place, _, _) in acked.namespaces.items():
        ahead[name] = max(place, ahead.get(name, -1))
    kept = {name: place for name, place in ahead.items() if place >= further.handled}
    return msgspec.structs.replace(further, namespaces=kept)


def parted(child: DeliveryChild, error: Exception, bisect: bool) -> list[DeliveryChild]:
    """Split a range of several records after an error: around the record that the error names, or in pieces."""
    if isinstance(error, Rejected):
        return around(child, child.skip + error.place)
    return pieces(child, bisect)


def pieces(child: DeliveryChild, bisect: bool) -> list[DeliveryChild]:
    """Split a range after a bulk error: into single records, or into halves."""
    if not bisect:
        return [DeliveryChild(child.skip, child.take, single=True)]
    half = child.take // 2
    return [DeliveryChild(child.skip, half), DeliveryChild(child.skip + half, child.take - half)]


def around(child: DeliveryChild, place: int) -> list[DeliveryChild]:
    """Split a range into the records before a place, the record there, and those after it."""
    behind = child.skip + child.take - place - 1
    three = [DeliveryChild(child.skip, place - child.skip), DeliveryChild(place, 1), DeliveryChild(place + 1, behind)]
    return [piece for piece in three if piece.take]


def split_into(
    progress: DeliveryProgress, left: list[DeliveryChild], child: DeliveryChild, parts: list[DeliveryChild]
) -> DeliveryProgress:
    """Return the progress with ``child``, which is the first of ``left`` or its beginning, replaced by ``parts``."""
    first = left[0]
    rest = DeliveryChild(first.skip + child.take, first.take - child.take, first.single)
    pending = [*parts, *([rest] if rest.take else []), *left[1:]]
    return msgspec.structs.replace(progress, pending=pending, split=True)


def cause_of(error: Exception) -> str:
    """Return why a delivery is split, for the history."""
    return f"claimed as {error.state} before" if isinstance(error, AlreadyClaimed) else str(error)
