"""The testing kit: fault injection in real pipelines (the ``chaos`` connectors), and a clock that does not advance."""

from __future__ import annotations

import threading

from conduit_dagster.connectors.chaos.fault import failures

__all__ = ["FakeClock", "failures"]

_SECOND = 1_000_000_000


class FakeClock:
    """Unix time that changes only when advanced. Thread-safe."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        """Return the time in unix nanoseconds."""
        return self._now_ns

    def advance(self, seconds: float) -> int:
        """Advance the clock, or set it back if ``seconds`` is negative; return the new time in nanoseconds.

        Exact to the nanosecond for less than 50 days at a time.
        """
        with self._lock:
            self._now_ns += round(seconds * _SECOND)
            return self._now_ns
