"""Limits of an expression's size and of its work on any record, and the measuring of values against them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from conduit_dagster.expressions.compiled import EvaluationError

EXPRESSION_CHARS = 4096
TEMPLATE_CHARS = 65536
DEPTH = 50
COMPREHENSIONS = 8
"""Comprehensions in one expression: each has its own budget."""
LITERAL_BITS = 256
NUMBER_BITS = 8192
"""Size limit of a product, in bits. A document's own integers may be longer."""
TEXT_CHARS = 4_000_000
ITEMS = 100_000
"""Length limit of a list that an expression builds, sorts or iterates over."""
WORK = 10_000_000
"""Characters and items that one comprehension may touch: loops over a document stay linear in practice."""
WIDTH = 100
MADE = 32_000_000
"""Total of characters and items that one evaluation may build."""
OPERATIONS = 8
"""Maximum number of operations that build texts or lists in an unmetered expression: each has its own limit."""
REFERENCES = 16
"""Maximum number of references to the record in lists and sums of an unmetered expression: its result is then at most
this many times as large as the record.
"""
LOOP_WEIGHT = 50
"""Weight of a loop's body below which it is not checked: a loop of :data:`ITEMS` iterations stays within :data:`WORK`.
"""
DIVISOR_BITS = 2048
"""Size limit of a divisor, in bits: long division takes quadratic time."""


def within(size: int, limit: int, what: str) -> None:
    """Raise :class:`EvaluationError` if ``size`` exceeds ``limit``; call it before building the value."""
    if size > limit:
        raise EvaluationError(f"{what} would be larger than {limit:,}")


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace like ``str.replace``, but check the size of the result before building it."""
    found = text.count(old)
    times = found if count < 0 else min(found, count)
    within(len(text) + times * max(0, len(new) - len(old)), TEXT_CHARS, "the replaced text")
    return text.replace(old, new, count)


def within_text(value: Any) -> Any:
    """Return ``value``; raise :class:`EvaluationError` for text that is too long to build longer text from it."""
    if value.__class__ is str and len(value) > TEXT_CHARS:
        within(len(value), TEXT_CHARS, "the text")
    return value


def joined(texts: Iterable[str], separator: str = "") -> str:
    """Join texts that are produced one by one; stop once they are larger than :data:`TEXT_CHARS`."""
    made: list[str] = []
    size = 0
    for text in texts:
        size += len(text) + len(separator)
        if size > TEXT_CHARS:
            within(size, TEXT_CHARS, "the text")
        made.append(text)
    return separator.join(made)


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
        measure(value, TEXT_CHARS)
    return value


def weighed(value: Any, weight: int) -> Any:
    """Return a loop's input, if that many iterations of this weight are within the work limit of one loop."""
    if value.__class__ in CONTAINERS or value.__class__ is str:
        within(len(value) * weight, WORK, "the work of the comprehension")
    return value


class MakingBudget:
    """Budget of one evaluation of a metered expression."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MADE

    def charge(self, value: Any) -> Any:
        """Return ``value``, which an operation built, after charging its size at any depth."""
        if value.__class__ is str or value.__class__ is bytes:
            self.left -= len(value)
        elif value.__class__ in CONTAINERS:
            self.left -= measure(value, self.left)
        if self.left < 0:
            raise EvaluationError(f"the expression makes more than {MADE:,} characters and items")
        return value
