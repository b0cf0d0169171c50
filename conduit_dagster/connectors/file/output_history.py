"""History of a ``file`` destination's output, in its target, for the pipelines that read it.

Bytes stay as they were written: a reader parses them by the format that they have, whatever the file says by now.
"""

from __future__ import annotations

from itertools import takewhile

from conduit_dagster.sdk import Delivery, Target

_NEXT, _FORMATS = "format", "formats"


def planned(target: Target, previous: Target, name: str) -> Target:
    """Return the target of a delivery in the format ``name``, with the formats of the last target at the same path."""
    known = previous.get(_FORMATS, []) if _goes_on(target, previous) else []
    return {**target, _NEXT: name, _FORMATS: known}


def _goes_on(target: Target, previous: Target) -> bool:
    """Return whether it is the same path in the same layout."""
    return previous.get("path") == target["path"] and ("length" in previous) == ("base" in target)


def moved(target: Target, lost: Target) -> Target:
    """Return a new target for a delivery whose own one is lost, with the same history."""
    return {**target, **{key: lost[key] for key in (_NEXT, _FORMATS) if key in lost}}


def published(target: Target, delivery: Delivery) -> Target:
    """Return the target after a delivery, with the place where its format begins unless that is the last one's.

    A place is a byte of an ordered file, or a step of a folder. A target of an older version has no formats.
    """
    if _NEXT not in delivery.target:
        return target
    place, name = delivery.target.get("base", delivery.step), delivery.target[_NEXT]
    known = list(takewhile(lambda one: one[0] < place, delivery.target[_FORMATS]))
    same = bool(known) and known[-1][1] == name
    after = {key: value for key, value in target.items() if key != _NEXT}
    return {**after, _FORMATS: known if same else [*known, [place, name]]}


def without_history(target: Target | None) -> Target | None:
    """Return the target as its layout made it."""
    return target and {key: value for key, value in target.items() if key not in (_NEXT, _FORMATS)}


def stretches(target: Target, start: int, end: int) -> list[tuple[int, str]]:
    """Return where each format in ``[start, end)`` ends, and its name; empty if they are not known.

    What was there before the first known format counts as that format.
    """
    known = target.get(_FORMATS, [])
    ends = [*(place for place, _ in known[1:]), end]
    every = ((begin, upto, name) for (begin, name), upto in zip(known, ends, strict=False))
    return [
        (min(upto, end), name)
        for number, (begin, upto, name) in enumerate(every)
        if start < upto and (number == 0 or begin < end)
    ]
