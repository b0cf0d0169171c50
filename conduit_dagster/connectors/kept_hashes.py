"""How long delivery hashes are kept: one rule for all destinations that store them, wherever they do."""

from __future__ import annotations

from typing import Final

from conduit_dagster.sdk import Delivery

KEPT_STEPS: Final = 1_000
"""Number of steps whose hashes are kept. An older delivery is refused, so that none is ever published twice."""
_EVERY: Final = 100


def new_floor(delivery: Delivery) -> int | None:
    """Return the step before which hashes are removed with this delivery; None for most: it is every hundredth step."""
    floor = delivery.step - KEPT_STEPS
    # the first child prunes for all
    is_first = delivery.take is None or not delivery.skip
    return floor if floor > 0 and delivery.step % _EVERY == 0 and is_first else None
