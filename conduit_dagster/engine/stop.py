"""Stop requests for a run."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Literal

Reason = Literal["user", "system"]


class StopFlag:
    """Graceful: finish the current step. Forced: cancel its Spark job, and nothing unprepared survives.

    Set from any thread or signal handler; nothing is raised into a running call, which would corrupt the protocol state
    of Spark's client.
    """

    def __init__(self) -> None:
        self.asked: Future[None] = Future()
        """Done once a stop was requested, either way; lets callers wait for it together with other futures."""
        self._graceful = threading.Event()
        self._forced = threading.Event()
        self.reason: Reason = "user"
        self.since: float | None = None
        """Time of the request, on the monotonic clock; None before it."""
        self.forced_at: float | None = None
        """Time of the first forced request, likewise."""

    def request(self, reason: Reason = "user") -> None:
        """Request a graceful stop. A user's wish counts, also after the system's: the pipeline then stays stopped."""
        if not self._graceful.is_set():
            self.reason = reason
            self.since = time.monotonic()
            self._ask()
        elif reason == "user":
            self.reason = reason

    def force(self) -> None:
        """Request a forced stop."""
        now = time.monotonic()
        self.since, self.forced_at = self.since or now, self.forced_at or now
        self._forced.set()
        self._ask()

    def _ask(self) -> None:
        self._graceful.set()
        # a signal and another thread may race to be first
        with suppress(InvalidStateError):
            self.asked.set_result(None)

    @property
    def requested(self) -> bool:
        """Whether the run is to end, either way."""
        return self._graceful.is_set()

    @property
    def forced(self) -> bool:
        """Whether the run is to end now."""
        return self._forced.is_set()

    def allows(self, seconds: float) -> bool:
        """Return whether work that was begun may still be finished: after a graceful stop, for so many seconds."""
        return not self._forced.is_set() and (self.since is None or time.monotonic() - self.since < seconds)

    def wait(self, seconds: float) -> bool:
        """Wait for a stop; return whether one was requested."""
        return self._graceful.wait(seconds)

    def wait_forced(self, seconds: float) -> bool:
        """Wait for a forced stop; return whether one was requested."""
        return self._forced.wait(seconds)
