"""What must hold after the runs of a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from conduit_dagster.engine.report import RunResult


class Broken(AssertionError):  # noqa: N818  # what a test finds, not a fault of the program
    """A broken guarantee."""


class Watch:
    """An act whose findings are reported later: the engine would take them for errors of its own parts."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act
        self._found: list[Broken] = []

    def __call__(self, *given: Any) -> None:
        """Check, and continue."""
        try:
            self._act(*given)
        except Broken as broken:
            self._found.append(broken)

    def report(self) -> None:
        """Raise the first finding."""
        if self._found:
            raise self._found[0]


def sound(result: RunResult) -> RunResult:
    """A run that must succeed."""
    if result.error is not None:
        raise Broken(f"stuck: {result.error.code}: {result.error.message}")
    return result


def hold(got: list[int], wanted: list[int]) -> None:
    """Every wanted record once, in order, and no other."""
    missing, more = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
    if doubled := sorted(set(more) & set(wanted)):
        raise Broken(f"doubled: {doubled}")
    if missing:
        raise Broken(f"lost: {sorted(missing)}")
    if more:
        raise Broken(f"invented: {sorted(more)}")
    if got != wanted:
        raise Broken(f"disorder: {got}")


def decided_once(out: list[int], dead: list[int]) -> None:
    """Each record is in one place: the destination or the dead letters."""
    both = sorted(set(out) & set(dead))
    require(not both, f"decided twice: {both}")


def require(holds: bool, what: str) -> None:
    """A rule that is checked directly."""
    if not holds:
        raise Broken(what)
