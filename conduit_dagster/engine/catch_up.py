"""A destination that was added later and starts from the log (DELIVERY.md, Destinations).

What it missed is read again as a source of its own: with its own position, generation and delivery hashes, in steps
that are for this destination alone and come before any other.
"""

from __future__ import annotations

import hashlib
from typing import Any

from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.sdk import Limit, Position, Source

_LONGEST = 256


class CatchUpSource(LogSource):
    """The log of one source, for one destination, up to where the pipeline stood when it was added."""

    name = "catch-up"

    def __init__(self, real: Source, source: str, consumer: str) -> None:
        super().__init__(real)
        self.source, self.consumer = source, consumer

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """As of the log, and not beyond ``horizon``: from there on it is sent what the others are sent."""
        return max(start, min(super().latest(start, limit), horizon))

    def ack(self, upto: Position, generation: int) -> None:
        """The source was acked when its records were new."""

    def lag(self, position: Position) -> int | None:
        """Unknown: that is the source's own."""
        return None


def catch_up_id(source: str, consumer: str) -> str:
    """The name of what a destination catches up on. No connector's id has an ``@``."""
    name = f"{source}@{consumer}"
    return name if len(name) <= _LONGEST else f"catch-up@{hashlib.sha256(name.encode()).hexdigest()[:32]}"
