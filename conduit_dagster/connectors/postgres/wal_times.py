"""Times at which the server's WAL reached an LSN, for the age of a position in seconds."""

from __future__ import annotations

from bisect import bisect_right

_MOST = 1_000


class WalTimes:
    """Samples of WAL end and time by one run, the latest thousand or so."""

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._times: list[float] = []

    def add(self, flushed: int, at: float) -> None:
        """Record that all commits before the server's time ``at`` (seconds since 1970) lie before ``flushed``."""
        if self._lsns and flushed <= self._lsns[-1]:
            if flushed == self._lsns[-1]:
                self._times[-1] = at
            return
        self._lsns.append(flushed)
        self._times.append(at)
        if len(self._lsns) > _MOST:
            # keep every second sample: an age is overstated by at most the time between two samples
            self._lsns, self._times = self._lsns[1::2], self._times[1::2]

    def before(self, lsn: int) -> float | None:
        """Return the latest time up to which all commits lie before ``lsn``; None if no sample is that early."""
        place = bisect_right(self._lsns, lsn)
        return self._times[place - 1] if place else None
