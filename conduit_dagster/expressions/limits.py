"""The bounds that keep an expression from growing, whatever record it meets."""

from __future__ import annotations

from conduit_dagster.expressions.compiled import EvaluationError

EXPRESSION_CHARS = 4096
TEMPLATE_CHARS = 65536
DEPTH = 50
COMPREHENSIONS = 8
"""Comprehensions in one expression: each may spend a budget of its own."""
LITERAL_BITS = 256
NUMBER_BITS = 8192
"""The largest product, in bits. A document's own integers may be longer."""
TEXT_CHARS = 4_000_000
ITEMS = 100_000
"""The longest list that an expression builds, sorts or goes through."""
WORK = 10_000_000
"""Characters and items that one comprehension may touch: loops over a document stay linear in practice."""
WIDTH = 100


def within(size: int, limit: int, what: str) -> None:
    """Raise :class:`EvaluationError` before something larger than ``limit`` is built."""
    if size > limit:
        raise EvaluationError(f"{what} would be larger than {limit:,}")


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """``str.replace`` that knows the size of its result before it builds it."""
    found = text.count(old)
    times = found if count < 0 else min(found, count)
    within(len(text) + times * max(0, len(new) - len(old)), TEXT_CHARS, "the replaced text")
    return text.replace(old, new, count)
