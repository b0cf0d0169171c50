"""Freezing of processes: one that is frozen neither answers nor refuses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .waiting import wait_until


@contextmanager
def frozen(first: int, others: Iterable[int] = ()) -> Iterator[None]:
    """Freeze processes (SIGSTOP) within the context. ``others`` is iterated once the first one is frozen.

    A signal takes effect when a thread of its process gets a CPU; until then all of its threads keep answering,
    which on a busy machine lasts longer than a request. So every thread is awaited.
    """
    stopped: list[int] = []
    try:
        _stop(first, stopped)
        for pid in others:
            _stop(pid, stopped)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _stop(pid: int, stopped: list[int]) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)
        wait_until(lambda: _states(pid) <= {"T", "Z", "X"}, f"process {pid} is frozen")


def _states(pid: int) -> set[str]:
    """Return the states of a process's threads, as in ``ps``; empty if it has ended."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found
