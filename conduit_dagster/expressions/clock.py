"""The time that ``now()`` gives."""

from __future__ import annotations

import time
from functools import lru_cache


class Clock:
    """The step's recorded time, in unix nanoseconds.

    The engine sets ``now_ns`` when a task starts; it never moves by itself, so that a repeat of a step gives
    the same bytes.
    """

    __slots__ = ("now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def text(self) -> str:
        """The time as RFC 3339 in UTC, without trailing zeros in the fraction, as Go writes it."""
        return _rfc3339(self.now_ns)

    def nanoseconds(self) -> int:
        """The time in unix nanoseconds."""
        return self.now_ns


@lru_cache(maxsize=64)
def _rfc3339(now_ns: int) -> str:
    seconds, fraction = divmod(now_ns, 1_000_000_000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{fraction:09d}".rstrip("0").rstrip(".") + "Z"
