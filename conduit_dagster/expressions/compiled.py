"""Compiled expressions, the clock behind ``now()``, and the errors of compiling and evaluating."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Protocol, cast

from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.record import Record


class Clock:
    """The step's recorded time, in unix nanoseconds.

    The engine sets ``now_ns`` when a task starts; it never advances by itself, so that repeating a step gives
    the same bytes.
    """

    __slots__ = ("now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def text(self) -> str:
        """Return the time as RFC 3339 in UTC, without trailing zeros in the fraction, as Go writes it."""
        return _rfc3339(self.now_ns)

    def nanoseconds(self) -> int:
        """Return the time in unix nanoseconds."""
        return self.now_ns


@lru_cache(maxsize=64)
def _rfc3339(now_ns: int) -> str:
    seconds, fraction = divmod(now_ns, 1_000_000_000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{fraction:09d}".rstrip("0").rstrip(".") + "Z"


class ExpressionError(ValueError):
    """Raised for an expression or template that is rejected when its file is checked.

    ``column`` is a character offset from the start of the whole text, from 0; line ends count. It is ``None`` if no
    single place is at fault. ``fix`` suggests a correction.
    """

    def __init__(self, message: str, column: int | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.fix = fix


class EvaluationError(Exception):
    """Raised by an expression for one record; nacks that record."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return ``did you mean `after`?`` for a mistyped name, or ``None`` if no known name is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean `{found[0]}`?" if found else None


def kind(value: object) -> str:
    """Return the kind of a value, worded for an error message."""
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


PARTS = frozenset({"after", "before", "key", "metadata", "operation", "position"})


def reads_key(names: frozenset[str]) -> bool:
    """Return whether reading these parts requires every record's key and position."""
    return not names.isdisjoint(("key", "position"))


class Compiled(Protocol):
    """A function of one record.

    It never changes the record, but its result may be a part of the record: copy it before changing it.
    It cannot be pickled: compile in the worker.
    """

    names: frozenset[str]
    """Parts of the record that the function reads, out of :data:`PARTS`."""
    literal: str | None
    """The result if it is the same text for every record, otherwise ``None``."""
    json_of: str | None
    """The part whose JSON is the whole result (``{{ toJson … }}``; ``record``: the whole record), otherwise ``None``.
    """

    code: PayloadCode | None
    """The function as one expression over ``after``; None if it reads more, or can only be called.

    It raises for a payload that is no document. Its value is not made fit for JSON, nor a condition's turned into a
    boolean.
    """

    def __call__(self, record: Record, /) -> Any:
        """Return the value for this record. Raises for a record that the expression does not fit."""
        ...


def compiled(
    function: Callable[[Record], Any],
    names: Iterable[str],
    *,
    literal: str | None = None,
    json_of: str | None = None,
    code: PayloadCode | None = None,
) -> Compiled:
    """Return the function itself with its attributes set: a wrapper object would slow down every call."""
    made = cast(Any, function)
    made.names = frozenset(names)
    made.literal = literal
    made.json_of = json_of
    made.code = code
    return cast(Compiled, made)
