"""Work of operators' ops, which a signal, as of *Terminate* in Dagster, ends between its steps only."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TypeVar

import dagster as dg

from conduit_dagster.assets.stopping import Signals
from conduit_dagster.daemon_threads import has_ended, in_daemon
from conduit_dagster.spark.jobs import cancel_jobs_of

T = TypeVar("T")
_POLL = 0.1
_PATIENCE = 30.0
"""Seconds after a signal for the step at hand; its Spark jobs are cancelled then."""
_CANCELLING = 5.0
"""Seconds after that until the work is left to the end of the process."""


class Interruptible:
    """Block in which signals raise nothing in the work, and end the run after it.

    Dagster would raise in the main thread: in the middle of a transaction that keeps the state store locked until the
    process has ended, also for all other pipelines; in a call of Spark it may crash the process. Whatever the work has
    done when a signal came is to be reported within the block: leaving it ends the run as interrupted.
    """

    def __init__(self, patience: float = _PATIENCE) -> None:
        """``patience``: seconds after a signal for the work to end by itself."""
        self._signals, self._patience = Signals(), patience

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._signals.__exit__(kind, error, trace)
        # a generator that is closed has been interrupted elsewhere
        if not self.goes_on() and not isinstance(error, GeneratorExit):
            raise dg.DagsterExecutionInterruptedError from error

    def goes_on(self) -> bool:
        """Return whether no signal has come: asked by the work, between its steps."""
        return self._signals.count == 0

    def run(self, pipeline: str, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread of its own; return its result, or raise its error.

        Raises ``DagsterExecutionInterruptedError`` if a signal came before it, or if it has not ended in time after
        one: as after a kill, the pipeline's next run finishes or voids what it has left.
        """
        if not self.goes_on():
            raise dg.DagsterExecutionInterruptedError
        working, since = in_daemon(work, f"operator-{pipeline}"), None
        while not has_ended(working, _POLL):
            if self.goes_on():
                continue
            since = since or time.monotonic()
            late = time.monotonic() - since - self._patience
            if late > _CANCELLING:
                raise dg.DagsterExecutionInterruptedError
            if late > 0:
                # a lost session can't be reached; the work detects that itself
                with suppress(Exception):
                    cancel_jobs_of(pipeline)
        return working.result()
