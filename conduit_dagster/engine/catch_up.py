"""Catch-up of a destination that was added later and starts from the log (DELIVERY.md, Destinations).

The records it missed are read again as a separate source with its own position, generation and delivery hashes, in
steps that are for this destination alone and come before any other.
"""

from __future__ import annotations

import hashlib
from typing import Any

from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.sdk import Limit, Position, Source

_LONGEST = 256


class CatchUpSource(LogSource):
    """The log of one source, for one destination, up to the pipeline's position when it was added."""

    name = "catch-up"

    def __init__(self, real: Source, source: str, consumer: str) -> None:
        super().__init__(real)
        self.source, self.consumer = source, consumer

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the end of the log, but not beyond ``horizon``: from there it is served by the regular steps."""
        return max(start, min(super().latest(start, limit), horizon))

    def ack(self, upto: Position, generation: int) -> None:
        """Do nothing: the source was acked when its records were new."""

    def lag(self, position: Position) -> int | None:
        """Return None: only the source itself has a lag."""
        return None


def catch_up_id(source: str, consumer: str) -> str:
    """Return the id of a destination's catch-up source. No connector id contains an ``@``."""
    name = f"{source}@{consumer}"
    return name if len(name) <= _LONGEST else f"catch-up@{hashlib.sha256(name.encode()).hexdigest()[:32]}"
