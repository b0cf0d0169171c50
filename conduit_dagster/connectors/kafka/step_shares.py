"""How a step's limits are shared between partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping

Place = tuple[str, int]
"""A topic and a partition."""


def shares(waiting: Mapping[Place, int], limit: int) -> dict[Place, int]:
    """Return how much to take of each: the same of all that have as much, so that none waits for another.

    The same input always gives the same result; in sum it is ``limit``, or all that there is.
    """
    taken: dict[Place, int] = {}
    left, open_ = limit, len(waiting)
    for key, there in sorted(waiting.items(), key=lambda item: item[1]):
        taken[key] = min(there, -(-left // open_))
        left -= taken[key]
        open_ -= 1
    return {key: taken[key] for key in waiting}


def within_bytes(taken: Mapping[Place, int], sizes: Mapping[Place, float], limit: int) -> dict[Place, int]:
    """Return how many of these messages have ``limit`` bytes, if each has as many as ``sizes`` says.

    Bytes are shared as messages are. Of each partition at least one message is taken, so that it gets on.
    """
    given = shares({place: math.ceil(count * sizes[place]) for place, count in taken.items()}, limit)
    return {
        place: count if count * sizes[place] <= given[place] else max(1, int(given[place] / sizes[place]))
        for place, count in taken.items()
    }
