"""When the server's WAL had reached which length, so that a position's age is known in seconds."""

from __future__ import annotations

from bisect import bisect_right

_MOST = 1_000


class WalTimes:
    """Looks at the WAL by one run, the latest thousand or so of them."""

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._times: list[float] = []

    def add(self, flushed: int, at: float) -> None:
        """Note that all commits before the server's time ``at`` (seconds since 1970) lie before ``flushed``."""
        if self._lsns and flushed <= self._lsns[-1]:
            if flushed == self._lsns[-1]:
                self._times[-1] = at
            return
        self._lsns.append(flushed)
        self._times.append(at)
        if len(self._lsns) > _MOST:
            # half as dense: an age is then overstated by the time between two looks
            self._lsns, self._times = self._lsns[1::2], self._times[1::2]

    def before(self, lsn: int) -> float | None:
        """Return the latest time whose commits all lie before ``lsn``; None if no look was that early."""
        place = bisect_right(self._lsns, lsn)
        return self._times[place - 1] if place else None
