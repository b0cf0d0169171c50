"""Limits that bound an expression's size and work on any record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
