"""What a delivery that did not get through as a whole is sent as (DELIVERY.md, When publishing fails). Pure."""

from __future__ import annotations

import msgspec

from conduit_dagster.sdk import AlreadyClaimed, Rejected
from conduit_dagster.state.steps import Child, Progress


def parted(child: Child, error: Exception, bisect: bool) -> list[Child]:
    """What a range of several records is sent as after this error: around the record that it names, or in pieces."""
    if isinstance(error, Rejected):
        return around(child, child.skip + error.place)
    return pieces(child, bisect)


def pieces(child: Child, bisect: bool) -> list[Child]:
    """What a range is sent as after a bulk error: one record at a time, or its halves."""
    if not bisect:
        return [Child(child.skip, child.take, single=True)]
    half = child.take // 2
    return [Child(child.skip, half), Child(child.skip + half, child.take - half)]


def around(child: Child, place: int) -> list[Child]:
    """A range as what lies before a record, the record, and what lies behind it."""
    behind = child.skip + child.take - place - 1
    three = [Child(child.skip, place - child.skip), Child(place, 1), Child(place + 1, behind)]
    return [piece for piece in three if piece.take]


def split_into(progress: Progress, left: list[Child], child: Child, parts: list[Child]) -> Progress:
    """The progress once ``child``, which is the first of what is ``left`` or its beginning, is sent as ``parts``."""
    first = left[0]
    rest = Child(first.skip + child.take, first.take - child.take, first.single)
    pending = [*parts, *([rest] if rest.take else []), *left[1:]]
    return msgspec.structs.replace(progress, pending=pending, split=True)


def cause_of(error: Exception) -> str:
    """Why it is split, for the history."""
    return f"claimed as {error.state} before" if isinstance(error, AlreadyClaimed) else str(error)
