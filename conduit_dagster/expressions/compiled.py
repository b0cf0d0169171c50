"""Compiled expressions, the fields that they read, the clock behind ``now()``, and the errors of both."""

from __future__ import annotations

import ast
import difflib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Protocol, cast

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
RAW_PARTS = frozenset({"after", "before", "key"})
"""Parts that may be raw data."""


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


_ACTION: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
_FIELD: Final = re.compile(r"\.Payload\.After\.([A-Za-z_]\w*)(?:\.\w+)*")
_HARMLESS: Final = re.compile(r"\.Operation\b")
_UNCLEAR: Final = re.compile(r"\$|(?<!\w)\.|\b(?:range|with|define|template|block)\b")
"""Syntax that may stand for a field, or for a document, without naming it."""

_PARTS: Final = frozenset({"before", "key", "metadata", "position"})


def template_fields(text: str) -> frozenset[str] | None:
    """Return the top-level fields that a Go template reads; None if its text does not show them.

    The operation counts as no field. Metadata, a key and a payload before may hold values of any field.
    """
    if any("}}" in quoted for quoted in _TEXT.findall(text)):
        return None
    actions = [_TEXT.sub('""', action) for action in _ACTION.findall(text)]
    rest = [_HARMLESS.sub("", _FIELD.sub("", action)) for action in actions]
    if any(map(_UNCLEAR.search, rest)):
        return None
    return frozenset(name for action in actions for name in _FIELD.findall(action))


def expression_fields(text: str) -> frozenset[str] | None:
    """Return the top-level fields that a Python expression reads; None as above."""
    try:
        return frozenset(_read(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, _UnclearError):
        return None


class _UnclearError(Exception):
    """Raised for a part of the record that is read as a whole."""


def _read(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="after"))):
            raise _UnclearError
        case ast.Attribute(value=ast.Name(id="after"), attr=name):
            yield name
        case ast.Subscript(value=ast.Name(id="after"), slice=ast.Constant(value=str(name))):
            yield name
        case ast.Name(id=name) if name == "after" or name in _PARTS:
            raise _UnclearError
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _read(child)
