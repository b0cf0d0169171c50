"""Work in daemon threads, which may be abandoned when it hangs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")
IN_RUN, BY_HAND = 2.0, 10.0
"""Seconds to wait for an answer of a connector: between the steps of a run, and for a command or a scrape."""


def in_daemon(work: Callable[[], T], name: str) -> Future[T]:
    """Run ``work`` in a daemon thread, which does not keep the process alive; return a future for its result."""
    future: Future[T] = Future()
    threading.Thread(target=fulfil, args=(work, future), name=name, daemon=True).start()
    return future


def fulfil(work: Callable[[], T], future: Future[T]) -> None:
    """Set the future to the result of ``work``, or to its error."""
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  # it is raised where the result is requested
        future.set_exception(error)


def has_ended(future: Future[T], seconds: float | None) -> bool:
    """Return whether the work has ended, after waiting for it for ``seconds`` at most; None waits without limit."""
    try:
        future.exception(seconds)
    except TimeoutError:
        return False
    return True


def below(name: str) -> str:
    """Return a thread name prefixed with the name of the current thread, which waits for it."""
    return f"{threading.current_thread().name}/{name}"


def side_by_side(works: Sequence[Callable[[], T]], name: str) -> list[T]:
    """Run all in daemon threads and return their results; once all have ended, raise the first one's error."""
    futures = [in_daemon(work, below(f"{name}-{i}")) for i, work in enumerate(works)]
    for future in futures:
        has_ended(future, None)
    return [future.result() for future in futures]


class Worker(Generic[T]):
    """Runner of calls in sequence, in a daemon thread: unlike an executor's, it does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], T], Future[T]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=below(name), daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call; return a future for its result. It runs after the calls queued before."""
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        """Wait for the queued calls to end, and stop the thread."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (one := self._calls.get()) is not None:
            fulfil(*one)


_unanswered: dict[int, Future[Any]] = {}
_QUICK = 0.05
"""Seconds that a query has for itself before the next one begins beside it: threads slow down quick queries."""


def answer_within(asked: object, query: Callable[[], T], seconds: float) -> T:
    """Return the answer of a query to a connector, or raise its error.

    Raises ``TimeoutError`` after ``seconds``, and at once while the previous query to ``asked`` is still unanswered:
    a connector that hangs delays its caller once.
    """
    answer = _ask(asked, query)
    if answer is not None and _is_answered(asked, answer, seconds):
        return answer.result()
    raise TimeoutError(f"no answer within {seconds:g} s")


def answers_within(queries: Mapping[K, tuple[object, Callable[[], T]]], seconds: float) -> dict[K, T]:
    """Return the answers of queries to many connectors, as far as they come within ``seconds`` for all together.

    ``queries``: each with its connector. One that fails has no answer.
    """
    until, open_, found = time.monotonic() + seconds, dict[K, tuple[object, Future[T]]](), dict[K, T]()
    for key, (asked, query) in queries.items():
        answer = _ask(asked, query)
        if answer is not None:
            open_[key] = asked, answer
            # the first half of the time is for queries one by one, the second for those that are not quick
            has_ended(answer, max(0.0, min(_QUICK, until - seconds / 2 - time.monotonic())))
    for key, (asked, answer) in open_.items():
        is_answered = _is_answered(asked, answer, max(0.0, until - time.monotonic()))
        if is_answered and answer.exception() is None:
            found[key] = answer.result()
    return found


def _ask(asked: object, query: Callable[[], T]) -> Future[T] | None:
    """Begin a query; return None, beginning none, while the previous one to ``asked`` is still unanswered."""
    previous = _unanswered.get(id(asked))
    if previous is not None and not previous.done():
        return None
    _unanswered.pop(id(asked), None)
    return in_daemon(query, f"ask-{type(asked).__name__}")


def _is_answered(asked: object, answer: Future[T], seconds: float) -> bool:
    is_answered = has_ended(answer, seconds)
    if not is_answered:
        # its thread keeps the connector, so that no other one gets the same id
        _unanswered[id(asked)] = answer
    return is_answered
