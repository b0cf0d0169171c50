"""The nack window: how many of the last records may be nacked before the pipeline stops. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class WindowVerdict:
    """Result of passing a sequence of results through the window."""

    exceeded: int | None
    """Index of the first nack that the window does not accept; nothing at or after it is handled."""
    state: str
    """Window state at the boundary, without the refused nack."""


@dataclass(frozen=True)
class NackWindow:
    """At most ``threshold`` nacks among the last ``size`` records; size 0 accepts any number (CASES A13-A15).

    Threshold 0 means that the first nack stops the pipeline, whatever the size.
    """

    size: int
    threshold: int

    def resolve(self, state: str, count: int, nacks: Iterable[int]) -> WindowVerdict:
        """Pass ``count`` results through the window; ``nacks`` are the indexes of the nacks among them, ascending.

        ``state`` is the previous window: '1' for a nack and '0' for an ack, the newest last.
        """
        if self.size == 0:
            return WindowVerdict(None, "")
        recent = deque(i - len(state) for i, bit in enumerate(state) if bit == "1")
        for index in nacks:
            while recent and recent[0] <= index - self._span:
                recent.popleft()
            if len(recent) >= self.threshold:
                return WindowVerdict(index, self._state(state, index, recent))
            recent.append(index)
        return WindowVerdict(None, self._state(state, count, recent))

    @property
    def _span(self) -> int:
        return self.size if self.threshold else 1

    def _state(self, before: str, count: int, recent: Iterable[int]) -> str:
        """Return the last ``size`` results before index ``count``."""
        length = min(self._span, len(before) + count)
        bits = ["0"] * length
        for index in recent:
            if (place := index - (count - length)) >= 0:
                bits[place] = "1"
        return "".join(bits)
