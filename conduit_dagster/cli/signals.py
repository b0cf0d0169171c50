"""SIGINT and SIGTERM: the first requests a stop, the second forces it, the third exits at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from conduit_dagster.engine.stop import StopFlag

_HANDLED: Final = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR: Final = b"\x1b[?25h"


class CommandSignals:
    """Signals received so far, passed on from the main thread's own loop.

    The handler itself never raises, which would corrupt py4j's protocol state, and never touches the flag, whose lock
    the interrupted code may hold.
    """

    def __init__(self, stop: StopFlag, say: Callable[[str], None]) -> None:
        self._stop, self._say = stop, say
        self._seen: list[int] = []
        self._told = 0
        self.patience = 1
        """Signals tolerated before the process exits at once: one while Spark starts, two after that."""

    @property
    def forced_exit(self) -> int | None:
        """Exit code of a forced stop; None if none was requested."""
        return None if self._told < 2 else 128 + self._seen[1]

    def deliver(self) -> None:
        """Pass on the signals received so far. Call this repeatedly from the main thread."""
        while self._told < min(len(self._seen), 2):
            self._told += 1
            if self._told == 1:
                self._stop.request("user" if self._seen[0] == signal.SIGINT else "system")
                self._say("stopping: the step at hand is finished first; once more stops by force")
            else:
                self._stop.force()
                self._say("stopping by force")

    def install(self) -> None:
        """Install the handlers; call this again after Spark has started, which installs its own."""
        for number in _HANDLED:
            signal.signal(number, self._note)

    def note(self, number: int) -> None:
        """Record a signal that arrived differently, as an exception."""
        self._seen.append(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen.append(number)
        if len(self._seen) > self.patience:
            if sys.stderr.isatty():
                os.write(2, _SHOW_CURSOR)
            os._exit(128 + number)


@contextmanager
def handled(signals: CommandSignals) -> Generator[None]:
    """Install our handlers for the duration of a run, then restore the former ones."""
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _HANDLED}
    signals.install()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
