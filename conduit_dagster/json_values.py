"""Values that JSON can hold, and JSON as Conduit reads it. msgspec silently writes NaN and infinities as null."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Final

import msgspec

_PLAIN = frozenset({str, bool, bytes, type(None)})
HUGE = 10**4300
LEAST = -HUGE
"""Bounds, both excluded, of the integers that Python writes and msgspec reads."""


def writable(value: int) -> int | str:
    """Return the integer, or its hexadecimal digits, which have no limit, if it can't be written as a number."""
    return value if LEAST < value < HUGE else hex(value)


def is_json(value: Any) -> bool:
    """Return whether JSON can hold the value unchanged; raw data (bytes) counts as JSON.

    Not one of a class that derives from text, numbers or bytes, such as numpy's ``float64``: no encoder takes it until
    :func:`plain` makes it one of the class itself. A member of an enumeration of texts or integers is its value.
    """
    kind = type(value)
    if kind is int:
        return LEAST < value < HUGE
    if kind in _PLAIN:
        return True
    if kind is float:
        return math.isfinite(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            # most values are integers or plain: checked here, without a call for each
            kind = type(inner)
            if not (LEAST < inner < HUGE if kind is int else kind in _PLAIN or is_json(inner)):
                return False
            if not isinstance(key, str):
                return False
        return True
    if isinstance(value, list):
        return all(map(is_json, value))
    return isinstance(value, Enum) and isinstance(value, str | int)


def unfit(value: Any, place: str) -> str | None:
    """Return which value in this one JSON cannot hold, for a message; None if it can hold all of them.

    ``place``: where the value is, such as ``.Payload.After``. Never the value itself, which may be a secret. Raises
    ``RecursionError`` for values nested some hundreds of levels.
    """
    if isinstance(value, dict):
        strange = next((key for key in value if not isinstance(key, str)), None)
        if strange is not None:
            return f"a name in {place} is of the class {_name_of(type(strange))}"
        return next(filter(None, (unfit(inner, f"{place}.{key}") for key, inner in value.items())), None)
    if isinstance(value, list):
        return next(filter(None, (unfit(inner, f"{place}[{i}]") for i, inner in enumerate(value))), None)
    if is_json(value):
        return None
    kind = type(value)
    if kind is float:
        return f"{place} is {no_number(value)}"
    what = "an integer of more than 4300 digits" if kind is int else f"of the class {_name_of(kind)}"
    return f"{place} is {what}"


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def plain(value: Any, of_float: Callable[[float], Any] = float.__float__) -> Any:
    """Return the value, or a copy in which texts, numbers and bytes of classes that derive from these are plain ones.

    Tuples become lists. ``of_float`` makes what stands for each float. Raises ``RecursionError`` for values nested some
    hundreds of levels.
    """
    if isinstance(value, float):
        return of_float(value)
    if isinstance(value, dict):
        return {key: plain(inner, of_float) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, of_float) for inner in value]
    if type(value) in _PLAIN or isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return b"".join([value]) if isinstance(value, bytes) else value


def finite(value: Any) -> Any:
    """Return the value, or a copy in which numbers that JSON lacks are text, and others :func:`plain`.

    Values nested deeper than Python's recursion limit (some hundreds of levels) may be returned unchanged.
    """
    try:
        return value if is_json(value) else plain(value, _finite)
    except RecursionError:
        return value


def _finite(value: float) -> float | str:
    return float.__float__(value) if math.isfinite(value) else no_number(value)


def no_number(value: float) -> str:
    """Return NaN or an infinity in Spark's notation: ``NaN``, ``Infinity``, ``-Infinity``."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_DEEPEST = 200
"""Levels of a document in a dead letter, which adds levels of its own: far below every encoder's limit."""


def shallow(root: Any) -> Any:
    """Return a copy in which everything nested deeper than 200 levels is text: its JSON, or a note if it has none."""
    made: list[Any] = [None]
    waiting: list[tuple[Any, Any, Any, int]] = [(root, made, 0, 0)]
    while waiting:
        value, into, key, depth = waiting.pop()
        if isinstance(value, dict | list) and depth >= _DEEPEST:
            value = _text_of(value)
        if isinstance(value, dict):
            into[key] = new = dict.fromkeys(value)
            waiting.extend((inner, new, name, depth + 1) for name, inner in value.items())
        elif isinstance(value, list):
            into[key] = new = [None] * len(value)
            waiting.extend((inner, new, i, depth + 1) for i, inner in enumerate(value))
        else:
            into[key] = value
    return made[0]


def _text_of(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, TypeError, OverflowError, RecursionError):
        return "[nested too deeply]"


_decode = msgspec.json.Decoder().decode
_HALF: Final = re.compile("[\ud800-\udfff]")
_LENIENT: Final = re.compile(rb"[\x00-\x1f](?!\Z)|\\u[dD]")
"""Found in all text that Conduit accepts and msgspec does not."""


def decode_json(text: bytes | str) -> Any:
    """Decode JSON; control characters in text need no escape, and a lone surrogate becomes U+FFFD.

    Raises ``msgspec.DecodeError``, ``UnicodeError`` or ``RecursionError``.
    """
    try:
        return _decode(text)
    except msgspec.DecodeError:
        if isinstance(text, bytes) and not _LENIENT.search(text):
            raise
        with suppress(ValueError, msgspec.DecodeError):
            return _decode(_escaped(text))
        raise


def _escaped(text: bytes | str) -> str:
    text = text if isinstance(text, str) else text.decode()
    # numbers are checked here: of two equal keys the last one alone is written again
    value = json.loads(text, strict=False, parse_constant=_finite_number, parse_float=_finite_number)
    return _HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False))


def _finite_number(text: str) -> float:
    value = float(text)
    if math.isfinite(value):
        return value
    raise ValueError(f"{text} is no number")
