"""Splitting of a delivery that failed as a whole (DELIVERY.md, When publishing fails). Pure."""

from __future__ import annotations

import msgspec

from conduit_dagster.sdk import AlreadyClaimed, Rejected
from conduit_dagster.state.steps import DeliveryChild, DeliveryProgress


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
