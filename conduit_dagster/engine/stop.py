"""Asking a run to stop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Literal

Reason = Literal["user", "system"]


class StopFlag:
    """Graceful: the step at hand is finished. Forced: its Spark job is cancelled and nothing unprepared survives.

    Set from any thread or signal handler; nothing is raised into a running call, which would leave Spark's client out
    of step (DAGSTER_FACTS, 2).
    """

    def __init__(self) -> None:
        self.asked: Future[None] = Future()
        """Done once a stop was requested, either way: to wait for it together with other futures."""
        self._graceful = threading.Event()
        self._forced = threading.Event()
        self.reason: Reason = "user"
        self.since: float | None = None
        """When it was asked for, on the monotonic clock; None before."""
        self.forced_at: float | None = None
        """When it was first asked for by force, likewise."""

    def request(self, reason: Reason = "user") -> None:
        """Request a graceful stop; the first reason stays."""
        if not self._graceful.is_set():
            self.reason = reason
            self.since = time.monotonic()
            self._ask()

    def force(self) -> None:
        """Request a forced stop."""
        now = time.monotonic()
        self.since, self.forced_at = self.since or now, self.forced_at or now
        self._forced.set()
        self._ask()

    def _ask(self) -> None:
        self._graceful.set()
        # a signal and another thread may both be first
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

    def wait(self, seconds: float) -> bool:
        """Wait for a stop; return whether one was requested."""
        return self._graceful.wait(seconds)

    def wait_forced(self, seconds: float) -> bool:
        """Wait for a forced stop; return whether one was requested."""
        return self._forced.wait(seconds)
