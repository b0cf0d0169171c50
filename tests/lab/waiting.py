"""Waiting for another thread or process and for what it writes, and starting several at the same moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_POLL = 0.02


def wait_until(
    condition: Callable[[], object],
    what: str,
    seconds: float = 120,
    *,
    over: Callable[[], object] = lambda: False,
    said: Callable[[], str] = lambda: "",
) -> None:
    """Poll until ``condition`` holds; otherwise fail with the message ``what`` and the result of ``said``.

    ``over``: returns True if the condition can't come true any more, so that no wait outlasts an ended process.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        # checked once more at the end: it may have become true just before
        ended = over() and not condition()
        assert not ended, f"it is over, and this never came true: {what}\n{said()}"
        assert time.monotonic() < deadline, f"this did not come true within {seconds:g} seconds: {what}\n{said()}"
        time.sleep(_POLL)


def at_once(work: Callable[[int], T], count: int) -> list[T]:
    """Return the results of ``work`` for each number, on threads that start simultaneously; raise the first error."""
    barrier = threading.Barrier(count)

    def one(number: int) -> T:
        barrier.wait(120)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that may still be written, without a last one that is incomplete."""
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
