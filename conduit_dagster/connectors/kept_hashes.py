"""How long delivery hashes are kept: one rule for all destinations that store them, wherever they do."""

from __future__ import annotations

import zlib
from typing import Final

from conduit_dagster.sdk import Delivery

KEPT_STEPS: Final = 1_000
"""Number of steps whose hashes are kept. An older delivery is refused, so that none is ever published twice."""
_EVERY: Final = 100


def new_floor(delivery: Delivery) -> int | None:
    """Return the step before which hashes are removed with this delivery; None for most: it is one in a hundred.

    Its hash decides, and not its step: a destination may have no records at any step of a regular sequence.
    """
    floor = delivery.step - KEPT_STEPS
    return floor if floor > 0 and zlib.crc32(delivery.hash.encode()) % _EVERY == 0 else None
