"""Waits between two looks at sources that have nothing new."""

from __future__ import annotations

import time
from collections.abc import Callable

_SHORTEST, _LONGEST = 0.05, 1.0
"""Seconds between two looks: just after a step, and once nothing has come for a while."""
_PATIENCE = 5.0
"""Seconds without a step before the wait grows: a source that trickles keeps the shortest one."""
_SHARE, _QUIET_SHARE = 200, 400
"""The wait is at least this many times as long as the CPU time of a look, up to ``_CEILING``; and once it is quiet."""
_CEILING = 10.0

_Seconds = Callable[[], float]


class IdleWait:
    """Wait of one pipeline's loop. Its looks cost half a percent of a core at most, half of that once it is quiet.

    Not guaranteed where one look takes more than 25 ms of CPU time: the wait never exceeds ten
    seconds, so that new records are not left lying for longer.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self.moved()

    def moved(self) -> None:
        """Start anew: there was something to do."""
        self._since, self._wait = self._clock(), _SHORTEST
        self._before = self._cpu()

    def seconds(self) -> float:
        """Return how long to wait after a look that found nothing. The look began when the last wait was asked for."""
        now = self._cpu()
        cost, self._before = now - self._before, now
        is_quiet = self._clock() - self._since >= _PATIENCE
        if is_quiet:
            self._wait = min(self._wait * 2, _LONGEST)
        return min(max(self._wait, cost * (_QUIET_SHARE if is_quiet else _SHARE)), _CEILING)
