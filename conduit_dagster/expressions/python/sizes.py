"""Sizes of the values that an expression builds, measured and charged before more is built from them."""

from __future__ import annotations

from typing import Any, Final

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.compiled import EvaluationError

CONTAINERS: Final = frozenset({list, tuple, dict})


def measure(value: Any, most: int) -> int:
    """Return the number of characters and items in ``value`` at any depth: its JSON is at least that long.

    A part that occurs twice counts twice. Raises :class:`EvaluationError` as soon as ``most`` is exceeded.
    """
    size = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        kind = one.__class__
        if kind is str:
            size += len(one)
        elif kind in CONTAINERS:
            size += sum(map(len, one)) + 1 if kind is dict else len(one)
        if size > most:
            raise EvaluationError(f"the value would be larger than {most:,}")
        if kind in CONTAINERS:
            waiting += one.values() if kind is dict else one
    return size


def measured(value: Any) -> Any:
    """Return a value to be converted to text, after measuring it."""
    if value.__class__ in CONTAINERS or value.__class__ is str:
        measure(value, limits.TEXT_CHARS)
    return value


def weighed(value: Any, weight: int) -> Any:
    """Return a loop's input, if that many iterations of this weight are within the work limit of one loop."""
    if value.__class__ in CONTAINERS or value.__class__ is str:
        limits.within(len(value) * weight, limits.WORK, "the work of the comprehension")
    return value


class MakingBudget:
    """Budget of one evaluation of a metered expression."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = limits.MADE

    def charge(self, value: Any) -> Any:
        """Return ``value``, which an operation built, after charging its size at any depth."""
        if value.__class__ is str or value.__class__ is bytes:
            self.left -= len(value)
        elif value.__class__ in CONTAINERS:
            self.left -= measure(value, self.left)
        if self.left < 0:
            raise EvaluationError(f"the expression makes more than {limits.MADE:,} characters and items")
        return value
