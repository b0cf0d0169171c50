"""Wait between two polls of sources that have nothing new."""

from __future__ import annotations

import time
from collections.abc import Callable

_SHORTEST, _LONGEST = 0.05, 1.0
"""Seconds between two polls: right after a step, and after a while without new records."""
_PATIENCE = 5.0
"""Seconds without a step before the wait grows: a slow trickle of records keeps the shortest wait."""
_SHARE, _QUIET_SHARE = 200, 400
"""Minimum ratio of the wait to the CPU time of a poll, up to ``_CEILING``: normally, and when idle."""
_CEILING = 10.0

_Seconds = Callable[[], float]


class IdleWait:
    """Wait of one pipeline's loop. Polling costs at most half a percent of a core, half of that when idle.

    Not guaranteed if one poll takes more than 25 ms of CPU time: the wait never exceeds ten seconds, so that new
    records are not delayed for longer.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self.reset()

    def reset(self) -> None:
        """Reset the wait after a step."""
        self._since, self._wait = self._clock(), _SHORTEST
        self._before = self._cpu()

    def seconds(self) -> float:
        """Return how long to wait after a poll that found nothing; its cost is the CPU time since the last call."""
        now = self._cpu()
        cost, self._before = now - self._before, now
        is_quiet = self._clock() - self._since >= _PATIENCE
        if is_quiet:
            self._wait = min(self._wait * 2, _LONGEST)
        return min(max(self._wait, cost * (_QUIET_SHARE if is_quiet else _SHARE)), _CEILING)
