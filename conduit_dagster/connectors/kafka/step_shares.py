"""Fair shares of a step's limits for partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping

Place = tuple[str, int]
"""A topic and a partition."""


def shares(waiting: Mapping[Place, int], limit: int) -> dict[Place, int]:
    """Return a fair share of the limit for each partition, so that no partition delays another.

    Deterministic; the sum is ``limit``, or everything that waits.
    """
    taken: dict[Place, int] = {}
    left, open_ = limit, len(waiting)
    for key, there in sorted(waiting.items(), key=lambda item: item[1]):
        taken[key] = min(there, -(-left // open_))
        left -= taken[key]
        open_ -= 1
    return {key: taken[key] for key in waiting}


def within_bytes(taken: Mapping[Place, int], sizes: Mapping[Place, float], limit: int) -> dict[Place, int]:
    """Return the number of messages per partition that fit into ``limit`` bytes, given average ``sizes``.

    Bytes are shared like messages. At least one message per partition is taken, so that it always progresses.
    """
    given = shares({place: math.ceil(count * sizes[place]) for place, count in taken.items()}, limit)
    return {
        place: count if count * sizes[place] <= given[place] else max(1, int(given[place] / sizes[place]))
        for place, count in taken.items()
    }
