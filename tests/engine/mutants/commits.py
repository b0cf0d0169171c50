"""What a reader could see of a pipeline's steps after each commit, and runs that die right before one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import sqlalchemy as sa
from engine.mutants.verdicts import Watch, require
from lab.kills import Crash
from sqlalchemy import event

_STEPS = "SELECT step, state, plan FROM conduit_steps WHERE pipeline = 'p' ORDER BY step"


class Seen(NamedTuple):
    """A step of one source."""

    step: int
    state: str
    start: int
    end: int


@contextmanager
def before_each_commit(act: Callable[[sa.Connection], Any]) -> Iterator[None]:
    """Call ``act`` with each transaction of any store, just before it is committed."""
    watch = Watch(act)
    event.listen(sa.Engine, "commit", watch)
    try:
        yield
    finally:
        event.remove(sa.Engine, "commit", watch)
    watch.report()


def chained(connection: sa.Connection) -> None:
    """Open steps follow each other, and a void one has left its place to another."""
    if not sa.inspect(connection).has_table("conduit_steps"):
        return
    seen = [_seen(*row) for row in connection.connection.cursor().execute(_STEPS)]
    still = [step for step in seen if step.state in ("planned", "prepared")]
    for one, following in pairwise(still):
        require(one.end == following.start, f"no chain: {one} and {following}")
    for void in (step for step in seen if step.state == "void"):
        others = [step for step in seen if step.state != "void" and step.start == void.start]
        require(bool(others), f"no chain: nothing in the place of {void}")


def _seen(step: int, state: str, plan: str) -> Seen:
    [span] = json.loads(plan)["ranges"]
    return Seen(step, state, span["start"], span["end"])


class Doomed:
    """Die right before the n-th commit after :meth:`arm`."""

    def __init__(self, number: int) -> None:
        self._left: int | None = None
        self._number = number

    def arm(self) -> None:
        """Start counting."""
        self._left = self._number

    def __call__(self, connection: sa.Connection) -> None:
        """A commit is about to happen."""
        if self._left is not None and not threading.current_thread().name.startswith("lease"):
            self._left -= 1
            if self._left == 0:
                raise Crash
