"""Watcher beside a run: obeys an operator's requests, and cancels jobs when a stop takes too long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state.database import reading
from conduit_dagster.state.recovery_store import RecoveryState, read

log = structlog.get_logger("conduit.engine")

_POLL = 0.05
_ASK = 0.5
"""Seconds between two looks at what an operator asked for."""


@contextmanager
def watching(
    stop: StopFlag, jobs: Jobs, shutdown_timeout: float, database: sa.Engine, pipeline: str
) -> Generator[threading.Event]:
    """Cancel the Spark jobs on a forced stop, or when a graceful one exceeds its timeout.

    ``pipelines stop`` is obeyed within a second if the state store answers. Yields the event that ends it before the
    block does: nothing of a run that is left behind may cancel what the pipeline runs next in this process.
    """
    watch = _Watch(stop, jobs, shutdown_timeout, lambda: _requested(database, pipeline))
    threads = [
        threading.Thread(target=watch.cancel, daemon=True, name=f"stop-watcher-{pipeline}"),
        # apart: a store that does not answer must not keep a forced stop waiting
        threading.Thread(target=watch.ask, daemon=True, name=f"stop-asker-{pipeline}"),
    ]
    for thread in threads:
        thread.start()
    try:
        yield watch.ended
    finally:
        watch.ended.set()
        if stop.requested:
            threads[0].join()  # it may be cancelling: no job of whoever comes next


def _requested(database: sa.Engine, pipeline: str) -> RecoveryState:
    with reading(database) as connection:
        return read(connection, pipeline)


class _Watch:
    def __init__(self, stop: StopFlag, jobs: Jobs, timeout: float, requested: Callable[[], RecoveryState]) -> None:
        self._stop, self._jobs, self._timeout, self._requested = stop, jobs, timeout, requested
        self.ended = threading.Event()

    def cancel(self) -> None:
        while not self._stop.wait(_POLL):
            if self.ended.is_set():
                return
        left = self._timeout
        while not self._stop.wait_forced(_POLL) and left > 0:
            if self.ended.is_set():
                return
            left -= _POLL
        while not self.ended.wait(_POLL):
            # a session that is gone can't be asked: the run finds out by itself
            with suppress(Exception):
                self._jobs.cancel()

    def ask(self) -> None:
        while not self.ended.wait(_ASK):
            try:
                state = self._requested()
            except SQLAlchemyError:
                continue  # a store that is away is the next transaction's business
            if state.stop_asked and not self._stop.requested:
                log.info("a stop was asked for", pipeline=self._jobs.pipeline, how=state.asked)
            if state.asked == "force":
                self._stop.force()
            elif state.stop_asked:
                self._stop.request("system" if state.asked == "renew" else "user")
