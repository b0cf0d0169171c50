"""Actions at a kill point of this process: a crash, or any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from conduit_dagster.recovery import kill_points


class Crash(BaseException):
    """Ends a run like a kill: the engine never catches it. The process continues."""


def crash() -> NoReturn:
    """Raise a crash."""
    raise Crash


@contextmanager
def hooked(hook: Callable[[str, str], object]) -> Iterator[None]:
    """Call ``hook(point, pipeline)`` at each point that is passed inside."""
    before, kill_points.hook = kill_points.hook, hook
    try:
        yield
    finally:
        kill_points.hook = before


@contextmanager
def at(point: str, action: Callable[[], object], passage: int = 1) -> Iterator[None]:
    """Run ``action()`` once, at the n-th passage of a point inside; fail if it is not passed that often."""
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
    """Expect a crash of the block at the n-th passage of a point."""
    with pytest.raises(Crash), at(point, crash, passage):
        yield
