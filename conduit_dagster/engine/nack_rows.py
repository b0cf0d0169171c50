"""Selection of the nacks that a task reports individually."""

from __future__ import annotations

from collections import deque

_SAMPLE = 20
"""Number of nacks of one split that are reported when none of them decides anything; the archive has all of them."""


class NackRows:
    """Selector of the nacks of a split that get a row: enough to decide where the step is cut, and a few others.

    Once the nacks of the split alone exceed the threshold, the step is cut here or earlier, so later ones don't matter.
    Without a window nothing is cut, and the rows are only for display.
    """

    def __init__(self, size: int, threshold: int) -> None:
        self._size, self._recent = size, deque[int](maxlen=threshold + 1)
        self._left = _SAMPLE if size == 0 else None
        self._decided = False

    def wants(self, ordinal: int) -> bool:
        """Return whether the nack of this record gets a row. Call once per nack, in order."""
        if self._left is not None:
            self._left -= 1
            return self._left >= 0
        if self._decided:
            return False
        self._recent.append(ordinal)
        full = len(self._recent) == self._recent.maxlen
        self._decided = full and ordinal - self._recent[0] < self._size
        return True
