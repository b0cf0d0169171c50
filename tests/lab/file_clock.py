"""Time of a file source that passes only while it waits: what others write meanwhile depends on no machine's speed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from conduit_dagster.connectors.file import file_state, step_ranges
from lab.file_reading import append


class FileClock:
    """The clock of file sources. Files that are appended to by it have its time as their modification time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._began = self._now = time.time_ns()
        self._due: list[tuple[int, Callable[[], object]]] = []
        self.naps: list[float] = []
        """Every pause of a run that waits for lines."""
        self.at_each_nap: Callable[[], object] = lambda: None
        own = SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.seconds, time_ns=lambda: self._now)
        for module in (file_state, step_ranges):
            patch.setattr(module, "time", own)

    @property
    def seconds(self) -> float:
        """Seconds that have passed."""
        return (self._now - self._began) / 1e9

    def append(self, path: Path, text: str) -> None:
        """Append to a file now."""
        append(path, text)
        self.age(path, 0)

    def append_later(self, path: Path, *texts: str, pause: float = 0.15) -> None:
        """Append piece by piece, with a pause before each, while the source waits."""
        for place, text in enumerate(texts, 1):
            self.later(place * pause, lambda text=text: self.append(path, text))

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Call ``action`` once so much time has passed."""
        self._due.append((self._now + int(seconds * 1e9), action))

    def age(self, path: Path, seconds: float) -> None:
        """Give a file the time of a change that many seconds ago."""
        then = self._now - int(seconds * 1e9)
        os.utime(path, ns=(then, then))

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.at_each_nap()
        until = self._now + int(seconds * 1e9)
        for moment, action in sorted((one for one in self._due if one[0] <= until), key=lambda one: one[0]):
            self._now = moment
            action()
        self._due = [one for one in self._due if one[0] > until]
        self._now = until
