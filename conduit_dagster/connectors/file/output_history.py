"""History of a ``file`` destination's output, in its target, for the pipelines that read it: formats, earlier paths.

Bytes stay as they were written: a reader parses them by the format that they have, whatever the file says by now.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from conduit_dagster.sdk import Delivery, Target

_NEXT, _FORMATS, _FORMER = "format", "formats", "former"
_HISTORY = (_NEXT, _FORMATS, _FORMER)
_MOST_FORMER = 20
"""Number of earlier paths that are known: the target is stored with every step."""


def planned(target: Target, previous: Target, name: str) -> Target:
    """Return the target of a delivery in the format ``name``, with what earlier targets say of this and other paths."""
    every = list(outputs(previous))
    known = next((one.get(_FORMATS, []) for one in every if _goes_on(target, one)), [])
    former = [one for one in every if one["path"] != target["path"]][:_MOST_FORMER]
    return {**target, _NEXT: name, _FORMATS: known, **({_FORMER: former} if former else {})}


def outputs(target: Target) -> Iterator[Target]:
    """Yield the current output of a target, then the earlier ones at other paths, the newest first."""
    if "path" in target:
        yield {key: value for key, value in target.items() if key != _FORMER}
    yield from target.get(_FORMER, [])


def _goes_on(target: Target, previous: Target) -> bool:
    """Return whether it is the same path in the same layout."""
    return previous.get("path") == target["path"] and ("length" in previous) == ("base" in target)


def moved(target: Target, lost: Target) -> Target:
    """Return a new target for a delivery whose own one is lost, with the same history."""
    return {**target, **{key: lost[key] for key in _HISTORY if key in lost}}


def published(target: Target, delivery: Delivery) -> Target:
    """Return the target after a delivery, with the place where its format begins unless that is the last one's.

    A place is a byte of an ordered file, or a step of a folder. A target of an older version has no formats.
    """
    if _NEXT not in delivery.target:
        return target
    place, name = delivery.target.get("base", delivery.step), delivery.target[_NEXT]
    known = list(takewhile(lambda one: one[0] < place, delivery.target[_FORMATS]))
    if not known or known[-1][1] != name:
        known.append([place, name])
    former: dict[str, Any] = {key: delivery.target[key] for key in (_FORMER,) if key in delivery.target}
    return {**{key: value for key, value in target.items() if key != _NEXT}, _FORMATS: known, **former}


def without_history(target: Target | None) -> Target | None:
    """Return the target as its layout made it."""
    return target and {key: value for key, value in target.items() if key not in _HISTORY}


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
