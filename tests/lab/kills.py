"""What happens at a kill point of this process: a crash, or anything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from conduit_dagster.recovery import kill_points


class Crash(BaseException):
    """Ends a run as a kill would: nothing of the engine catches it. The process goes on."""


def crash() -> NoReturn:
    """What happens at a point where a run ends."""
    raise Crash


@contextmanager
def hooked(hook: Callable[[str, str], object]) -> Iterator[None]:
    """``hook(point, pipeline)`` is called at each point that is passed inside."""
    before, kill_points.hook = kill_points.hook, hook
    try:
        yield
    finally:
        kill_points.hook = before


@contextmanager
def at(point: str, action: Callable[[], object], passage: int = 1) -> Iterator[None]:
    """``action()`` runs once, at the n-th passage of a point inside; the test fails where it is not passed so often."""
    left = passage

    def hook(passed: str, _: str) -> None:
        nonlocal left
        if passed == point:
            left -= 1
            if left == 0:
                action()

    with hooked(hook):
        yield
    assert left <= 0, f"{point} was not passed {passage} times"


@contextmanager
def crashing(point: str, passage: int = 1) -> Iterator[None]:
    """What is inside must crash at the n-th passage of a point."""
    with pytest.raises(Crash), at(point, crash, passage):
        yield
