"""Limits that bound an expression's size and work on any record."""

from __future__ import annotations

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


def within(size: int, limit: int, what: str) -> None:
    """Raise :class:`EvaluationError` if ``size`` exceeds ``limit``; call it before building the value."""
    if size > limit:
        raise EvaluationError(f"{what} would be larger than {limit:,}")


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace as ``str.replace`` does, but check the size of the result before building it."""
    found = text.count(old)
    times = found if count < 0 else min(found, count)
    within(len(text) + times * max(0, len(new) - len(old)), TEXT_CHARS, "the replaced text")
    return text.replace(old, new, count)
