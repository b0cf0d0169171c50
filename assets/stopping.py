"""Reasons for a Dagster run to end before its work does: signals, cancellation, the maximum duration."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Self, TypeVar

import dagster as dg
import structlog

from conduit_dagster.daemon_threads import has_ended, in_daemon
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.processes import end_forks_as_usual, is_readable
from conduit_dagster.secret_values import hide
from conduit_dagster.spark.jobs import cancel_jobs_of

log = structlog.get_logger("conduit.dagster")
_ASK_EVERY = 10.0
_ANSWER = 5.0
"""Seconds within which the main thread answers a signal, unless it hangs."""
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_HUNG = 1
"""Exit code of a process that was ended because its stop hung."""
_Handler = Callable[[int, FrameType | None], Any] | int | None


class Signals:
    """Counter of SIGINT and SIGTERM that raises nothing: an exception in a py4j call corrupts its protocol state.

    Enter it after the Spark session exists, in the main thread; in any other thread it catches nothing. The handler
    takes no lock, since it may interrupt the code that holds it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, _Handler] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            end_forks_as_usual(Signals._caught)
            for number in _STOPPING:
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


class ExitWatchdog:
    """Watchdog over a stop that the main thread can't carry out, as while it hangs in a call of Dagster's storage.

    Python handles a signal in the main thread, once such a call returns, but writes its number into a pipe at once.
    The watchdog requests the stop if the main thread doesn't, and ends the process if that hangs too: nothing is lost,
    the next run recovers as after a kill, and Dagster detects a run whose process has ended. Enter it in the main
    thread; in any other it watches nothing.
    """

    def __init__(self, stop: StopFlag, seconds: float) -> None:
        """``seconds`` count from the first signal, or from the stop's request where that is later."""
        self._stop, self._seconds = stop, seconds
        self._ended = threading.Event()
        self._restore: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heard, told = os.pipe()
            os.set_blocking(told, False)
            before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
            thread = threading.Thread(target=self._watch, args=(heard,), name="last-resort", daemon=True)
            thread.start()
            self._restore = partial(self._leave, thread, (heard, told), before)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _leave(self, thread: threading.Thread, pipe: tuple[int, int], before: int) -> None:
        signal.set_wakeup_fd(before)
        self._ended.set()
        os.write(pipe[1], b"\0")  # wakes the thread
        thread.join()
        for end in pipe:
            os.close(end)

    def _watch(self, heard: int) -> None:
        count, first = 0, 0.0
        while not self._ended.is_set():
            left = self._left(count, first)
            if left is not None and left <= 0:
                os.write(2, b"conduit-dagster: a stop hangs; the process ends, and the next run recovers\n")
                os._exit(_HUNG)
            if is_readable(heard, left):
                first = first or time.monotonic()
                count += sum(number in _STOPPING for number in os.read(heard, 100))
            elif not self._is_answered(count):
                self._answer(count)

    def _left(self, count: int, first: float) -> float | None:
        """Return the seconds to wait, after so many signals: for the main thread's answer, or until the end."""
        if count == 0:
            return None
        if not self._is_answered(count):
            return _ANSWER
        return max(first, self._stop.since or 0.0) + self._seconds - time.monotonic()

    def _is_answered(self, count: int) -> bool:
        return self._stop.requested and (count < 2 or self._stop.forced)

    def _answer(self, count: int) -> None:
        self._stop.request("system")
        if count > 1:
            self._stop.force()


class StopWatcher:
    """Stops the pipeline: on a signal, when Dagster cancels the run, or after ``end_after`` seconds."""

    def __init__(self, run: tuple[dg.DagsterInstance, str], stop: StopFlag, signals: Signals, end_after: float) -> None:
        """``run``: its Dagster instance and id."""
        self.terminated = False
        """Whether a user terminated the run in Dagster: only then must the pipeline stay stopped."""
        self.is_over = False
        """Whether the run has taken ``end_after`` seconds."""
        (self._instance, self._run_id), self._stop, self._signals = run, stop, signals
        self._answered = 0
        self._end = time.monotonic() + end_after
        self._ask = time.monotonic() + _ASK_EVERY

    def tick(self) -> None:
        """Request a stop if one is due. Called a few times a second."""
        if self._signals.count > self._answered:
            self._answer(self._signals.count)
        elif time.monotonic() >= self._ask:
            self._look_at_run()
        elif time.monotonic() >= self._end:
            self.is_over = True
            self._stop.request("system")

    @property
    def is_interrupted(self) -> bool:
        """Whether the process got a signal."""
        return self._signals.count > 0

    def _answer(self, count: int) -> None:
        """Stop the run: gracefully on the first signal, by force on the second."""
        self._answered = count
        self._look_at_run()
        self._stop.request("system")
        if count > 1:
            self._stop.force()

    def _look_at_run(self) -> None:
        """Check whether the run was cancelled: without a code server no signal reaches this process."""
        self._ask = time.monotonic() + _ASK_EVERY
        try:
            record = self._instance.get_run_record_by_id(self._run_id)
            terminated = record is not None and was_terminated(self._instance, record)
        except Exception as error:  # noqa: BLE001  # a moment without Dagster's storage must not end the run
            log.warning("Dagster's storage does not answer", run=self._run_id, cause=hide(str(error)))
            return
        if record is None:
            return
        run = record.dagster_run
        if terminated:
            self.terminated = True
            self._stop.request("user")
        elif run.is_finished or run.status is dg.DagsterRunStatus.CANCELING:
            # Dagster has given it up, for its runtime for example; nobody wanted the pipeline to stop
            self._stop.request("system")


_TOO_LONG = "maximum runtime"
"""In the message of the event with which Dagster's run monitoring cancels a run that takes too long."""


def was_terminated(instance: dg.DagsterInstance, record: dg.RunRecord) -> bool:
    """Return whether a user terminated the run. Dagster also cancels one that exceeds its maximum runtime."""
    run = record.dagster_run
    cancelled = run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
    return cancelled and not _is_too_long(instance, run.run_id)


def _is_too_long(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether Dagster's run monitoring was the first to cancel the run.

    As the run's events tell: this process may have other settings than the daemon, which was started again since.
    """
    first = next(iter(instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_CANCELING)), None)
    told = None if first is None else first.dagster_event
    return told is not None and _TOO_LONG in (told.message or "")


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
