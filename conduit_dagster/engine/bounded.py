"""Time limits that end a run even if part of it hangs: a connector, Spark, or the state store."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.daemon_threads import below, has_ended, in_daemon
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.claim import claim_of
from conduit_dagster.state.database import reading
from conduit_dagster.state.recovery_state import RecoveryState, recovery_state

T = TypeVar("T")
GRACE = 0.25
"""Seconds on top of the shutdown timeout for cancelling jobs."""
RECORDING = 2.0
"""Seconds for recording the end of a run that hangs: enough for a slow disk; the store itself may hang as well."""
FORCED = 5.0
"""Seconds that a forced stop may take to cancel Spark's jobs; or the shutdown timeout, if that is shorter."""
_POLL = 0.05
_ASK = 1.0
"""Seconds between two checks for requests of operators, and for the end of the run."""
_left: list[str] = []
log = structlog.get_logger("conduit.engine")


class RunHung(Exception):  # noqa: N818  # it describes the state of the work; nothing raises it outside this package
    """Raised for work that has not ended within the time for a stop; its thread is abandoned."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where
        """The innermost call outside the standard library, such as ``publish in plugins/slow.py:20``."""


def left_behind() -> bool:
    """Return whether this process has abandoned a hanging thread: closing its resources would hang as well."""
    return bool(_left)


def bounded(work: Callable[[], T], stop: StopFlag, timeout: float, name: str) -> T:
    """Run ``work`` in its own thread; return its result or raise its error.

    Raises :class:`RunHung` once a stop has taken longer than ``timeout`` seconds. The thread is a daemon: it does not
    keep the process alive, and the caller must fence it off in case it ever continues.
    """
    name = below(name)
    future = in_daemon(work, name)
    # a run may last for months: do not poll before a stop is requested
    either: list[Future[Any]] = [future, stop.asked]
    wait(either, return_when=FIRST_COMPLETED)
    while not has_ended(future, _POLL):
        until = _deadline(stop, timeout)
        if until is not None and time.monotonic() > until:
            where = _where(name)
            _left.append(name)
            raise RunHung(where)
    return future.result()


def within(work: Callable[[], None], seconds: float, name: str) -> bool:
    """Return whether ``work`` ended within ``seconds``, by success or error; otherwise its thread is abandoned."""
    name = below(name)
    is_over = has_ended(in_daemon(work, name), seconds)
    if not is_over:
        _left.append(name)
    return is_over


def _deadline(stop: StopFlag, timeout: float) -> float | None:
    graceful = None if stop.since is None else stop.since + timeout + GRACE
    forced = None if stop.forced_at is None else stop.forced_at + min(timeout, FORCED) + GRACE
    known = [one for one in (graceful, forced) if one is not None]
    return min(known) if known else None


def _where(name: str) -> str:
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, for debugging as here
    # a thread's name is the prefix of the names of the threads it waits for
    mine = [thread for thread in threading.enumerate() if thread.name.startswith(name)]
    found = max(mine, key=lambda thread: len(thread.name), default=None)
    frame = None if found is None or found.ident is None else frames.get(found.ident)
    if frame is None:
        return "its own thread"
    stack = [call for call in traceback.extract_stack(frame) if "/lib/python" not in call.filename]
    last = stack[-1] if stack else traceback.extract_stack(frame)[-1]
    return f"{last.name} in {last.filename}:{last.lineno}"


@contextmanager
def watching(
    stop: StopFlag, jobs: Jobs, shutdown_timeout: float, database: sa.Engine, pipeline: str
) -> Generator[Watch]:
    """Cancel the Spark jobs on a forced stop, or when a graceful stop exceeds its timeout.

    ``pipelines stop`` takes effect within a second if the state store answers.
    """
    watch = Watch(stop, jobs, shutdown_timeout, lambda: _requested(database, pipeline))
    threads = [
        threading.Thread(target=watch.cancel, daemon=True, name=f"stop-watcher-{pipeline}"),
        # separate thread: a state store that does not answer must not delay a forced stop
        threading.Thread(target=watch.ask, daemon=True, name=f"stop-asker-{pipeline}"),
    ]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        if stop.requested:
            threads[0].join()  # it may be cancelling, and must not hit a job of the next run


def _requested(database: sa.Engine, pipeline: str) -> RecoveryState:
    claim = claim_of(database)
    with reading(database) as connection:
        if claim is not None:
            claim.require(connection)
        return recovery_state(connection, pipeline)


class Watch:
    """Watcher of a run: for stops, requests of operators, and the loss of its state store.

    Set ``ended`` before its block ends to end it early: an abandoned run must not cancel what the pipeline runs next in
    this process.
    """

    def __init__(self, stop: StopFlag, jobs: Jobs, timeout: float, requested: Callable[[], RecoveryState]) -> None:
        self._stop, self._jobs, self._timeout, self._requested = stop, jobs, timeout, requested
        self._lost: FatalError | None = None
        self.ended = threading.Event()

    def require_store(self) -> None:
        """Raise the error of a state store that was lost: an idle run has no transaction that would."""
        if self._lost is not None:
            raise self._lost

    def cancel(self) -> None:
        """Cancel the jobs once a stop is forced, or takes longer than its timeout; until the watching ends."""
        while not self._stop.wait(_ASK):
            if self.ended.is_set():
                return
        left = self._timeout
        while not self._stop.wait_forced(_POLL) and left > 0:
            if self.ended.is_set():
                return
            left -= _POLL
        while not self.ended.wait(_POLL):
            # a lost session can't be reached; the run detects that itself
            with suppress(Exception):
                self._jobs.cancel()

    def ask(self) -> None:
        """Ask the state store for requests of operators, until the watching ends."""
        while not self.ended.wait(_ASK):
            try:
                state = self._requested()
            except SQLAlchemyError:
                continue  # an unreachable store is reported by the next transaction
            except FatalError as error:
                if self._lost is None:
                    log.error("the run is ended", pipeline=self._jobs.pipeline, cause=error.message)
                self._lost = error
                with suppress(Exception):
                    self._jobs.cancel()  # the next transaction raises the same error
                continue
            if state.stop_asked and not self._stop.requested:
                log.info("a stop was asked for", pipeline=self._jobs.pipeline, how=state.asked)
            if state.asked == "force":
                self._stop.force()
            elif state.stop_asked:
                self._stop.request("system" if state.asked == "renew" else "user")
