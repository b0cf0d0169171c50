"""How a step's limit is shared between partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def shares(waiting: Mapping[K, int], limit: int) -> dict[K, int]:
    """Return how much to take of each: the same of all that have as much, so that none waits for another.

    The same input always gives the same result; in sum it is ``limit``, or all that there is.
    """
    taken: dict[K, int] = {}
    left, open_ = limit, len(waiting)
    for key, there in sorted(waiting.items(), key=lambda item: item[1]):
        taken[key] = min(there, -(-left // open_))
        left -= taken[key]
        open_ -= 1
    return {key: taken[key] for key in waiting}
