"""A run ends when it must, whatever hangs in it: a connector, Spark, or the state store."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from conduit_dagster.engine.stop import StopFlag

T = TypeVar("T")
GRACE = 0.25
"""Seconds after the shutdown timeout in which jobs are cancelled and the end is recorded."""
FORCED = 5.0
"""Seconds that a stop by force may take to cancel Spark's jobs; the shutdown timeout, where that is shorter."""
_POLL = 0.05
_left: list[str] = []


class Hung(Exception):  # noqa: N818  # it says what became of the work; nothing raises it beyond this package
    """The time for a stop has passed, and the work has not ended: its thread is left where it is."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where
        """The innermost call that is not Python's own, such as ``publish in plugins/slow.py:20``."""


def left_behind() -> bool:
    """Whether a thread of this process was left hanging: closing what it uses would hang as well."""
    return bool(_left)


def bounded(work: Callable[[], T], stop: StopFlag, timeout: float, name: str) -> T:
    """What ``work`` gives or raises, in a thread of its own.

    Raises :class:`Hung` once a stop has taken longer than ``timeout`` seconds. The thread is a daemon: it keeps no
    process from ending, and must be fenced off by the caller should it ever go on.
    """
    name = _below(name)
    future = _in_daemon(work, name)
    while not _ended(future, _POLL):
        until = _deadline(stop, timeout)
        if until is not None and time.monotonic() > until:
            where = _where(name)
            _left.append(name)
            raise Hung(where)
    return future.result()


def within(work: Callable[[], None], seconds: float, name: str) -> bool:
    """Whether ``work`` ended within so many seconds, well or not; else its thread is left to itself."""
    return _ended(_in_daemon(work, _below(name)), seconds)


def side_by_side(works: Sequence[Callable[[], T]], name: str) -> list[T]:
    """What all of them give, each in a daemon thread; raises what the first of them raised, once all have ended."""
    futures = [_in_daemon(work, _below(f"{name}-{i}")) for i, work in enumerate(works)]
    for future in futures:
        _ended(future, None)
    return [future.result() for future in futures]


class Worker(Generic[T]):
    """Calls one after another in one daemon thread: unlike an executor's it keeps no process from ending."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], T], Future[T]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=_below(name), daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Its result, once it and those before it have ended."""
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        """Waits for the calls that are there."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (one := self._calls.get()) is not None:
            _fulfil(*one)


def _below(name: str) -> str:
    """A thread's name begins with that of the one that waits for it."""
    return f"{threading.current_thread().name}/{name}"


def _deadline(stop: StopFlag, timeout: float) -> float | None:
    graceful = None if stop.since is None else stop.since + timeout + GRACE
    forced = None if stop.forced_at is None else stop.forced_at + min(timeout, FORCED) + GRACE
    known = [one for one in (graceful, forced) if one is not None]
    return min(known) if known else None


def _in_daemon(work: Callable[[], T], name: str) -> Future[T]:
    future: Future[T] = Future()
    threading.Thread(target=_fulfil, args=(work, future), name=name, daemon=True).start()
    return future


def _fulfil(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  # it is raised where the result is asked for
        future.set_exception(error)


def _ended(future: Future[T], seconds: float | None) -> bool:
    try:
        future.exception(seconds)
    except TimeoutError:
        return False
    return True


def _where(name: str) -> str:
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, for debugging as here
    # a thread that it waits for has its name and more
    mine = [thread for thread in threading.enumerate() if thread.name.startswith(name)]
    found = max(mine, key=lambda thread: len(thread.name), default=None)
    frame = None if found is None or found.ident is None else frames.get(found.ident)
    if frame is None:
        return "its own thread"
    stack = [call for call in traceback.extract_stack(frame) if "/lib/python" not in call.filename]
    last = stack[-1] if stack else traceback.extract_stack(frame)[-1]
    return f"{last.name} in {last.filename}:{last.lineno}"
