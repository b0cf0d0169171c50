"""What goes wrong with an expression: when it is checked, and when it meets a record."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ExpressionError(ValueError):
    """An expression or template is refused when its file is checked.

    ``column`` counts characters from the start of the text given, from 0, across its lines; ``None`` where no
    single place is at fault. ``fix`` is what to write instead.
    """

    def __init__(self, message: str, column: int | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.fix = fix


class EvaluationError(Exception):
    """An expression does not fit the record it met: that record's nack."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """``did you mean `after`?`` for a mistyped name, or ``None`` where nothing known is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean `{found[0]}`?" if found else None


def kind(value: object) -> str:
    """What a value is, in words for an error message."""
    return _KINDS.get(type(value), type(value).__name__)


_KINDS: dict[type, str] = {
    type(None): "nothing (null or missing)",
    str: "text",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    list: "a list",
    tuple: "a list",
    dict: "an object",
    bytes: "raw data",
}
