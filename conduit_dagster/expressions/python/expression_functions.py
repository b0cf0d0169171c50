"""Functions and methods that a Python expression may call."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec
import re2

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.compiled import EvaluationError, kind
from conduit_dagster.expressions.python import guards

_json = msgspec.json.Encoder(order="sorted").encode


def text(value: Any) -> str:
    """Return ``str(value)``, but raw data as its UTF-8 text, and a list or an object as JSON text."""
    if value.__class__ is bytes:
        return value.decode()
    return msgspec.json.encode(value).decode() if isinstance(value, (dict, list, tuple)) else str(value)


def integer(value: Any) -> int:
    """Return ``int(value)`` of a number or text. Python itself refuses text of more than 4,300 digits."""
    if value.__class__ not in (int, float, bool, str):
        raise EvaluationError(f"int() needs a number or text, {_got(value)}")
    return int(value)


def floating(value: Any) -> float:
    """Return ``float(value)``, never NaN or infinite: JSON has neither."""
    if value.__class__ not in (int, float, bool, str):
        raise EvaluationError(f"float() needs a number or text, {_got(value)}")
    return _finite(float(value))


def _got(value: Any) -> str:
    hint = ": str() makes text of it" if value.__class__ is bytes else ""
    return f"got {kind(value)}{hint}"


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise EvaluationError(f"{value} is not a JSON number")
    return value


def rounded(value: Any, digits: Any = None) -> Any:
    """Return ``round(value, digits)``, with ``digits`` bounded so that it cannot compute a huge power of ten."""
    if digits is not None and not (digits.__class__ is int and -400 <= digits <= 400):
        raise EvaluationError("round() takes -400 to 400 digits")
    return round(value, digits) if digits is not None else round(value)


def total(values: Iterable[Any]) -> Any:
    """Return ``sum(values)`` of numbers only: adding up lists would take quadratic time."""
    result: Any = 0
    for value in values:
        if value.__class__ not in (int, float, bool):
            raise EvaluationError(f"sum() needs numbers, got {kind(value)}")
        result += value
    return result


def in_order(values: Iterable[Any], *, reverse: bool = False) -> list[Any]:
    """Return ``sorted(values)`` of a list of bounded length."""
    found = guards.items(values)
    if found and found[0].__class__ in (list, tuple):
        # two lists are compared item by item, each list many times
        limits.within(sum(map(len, found)), limits.ITEMS * 10, "the lists to sort")
    return sorted(found, reverse=reverse)


def canonical(value: Any) -> bytes:
    """Return the bytes that ``hash`` digests: text itself, any other value as JSON with sorted keys."""
    return value.encode() if value.__class__ is str else _json(value)


def digest(value: bytes) -> str:
    """Return the first 16 hexadecimal digits of SHA-256: stable across machines and releases, not secret."""
    return hashlib.sha256(value).hexdigest()[:16]


def joined(*parts: Any) -> str:
    """Return the result of an f-string: each part converted by :func:`text`."""
    texts: list[str] = []
    size = 0
    for part in parts:
        made = part if part.__class__ is str else str(part) if part.__class__ is int else text(part)
        size += len(made)
        if size > limits.TEXT_CHARS:
            limits.within(size, limits.TEXT_CHARS, "the f-string")
        texts.append(made)
    return "".join(texts)


def search(pattern: str) -> Callable[[Any], bool]:
    """Return a function that checks whether text contains a match, in time linear in the text (RE2).

    ``None`` never matches. Raises ``re2.error`` for a pattern that RE2 does not support: it has no look-around and no
    back references.
    """
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    find = re2.compile(pattern, options).search

    def matches(value: Any) -> bool:
        if value.__class__ is str:
            return find(value) is not None
        if value is None:
            return False
        raise EvaluationError(f"regex() needs text, got {kind(value)}")

    return matches


AS_THEY_ARE: Final = frozenset({int, str, bool, type(None), dict, list, bytes})
"""Types that :func:`json_value` returns unchanged."""


def json_value(value: Any) -> Any:
    """Return an expression's result in a form that JSON can hold."""
    if value.__class__ is float:
        # true for exactly the finite numbers, and the cheapest test
        return value if value * 0.0 == 0.0 else _finite(value)
    return list(value) if value.__class__ is tuple else value


class Function(NamedTuple):
    """A function's implementation and the arguments that it accepts."""

    call: Callable[..., Any] | None
    """``None`` if the translation generates the call itself."""
    least: int
    most: int
    loops: bool = False
    """Whether a single argument may be a generator."""
    keywords: frozenset[str] = frozenset()


_MANY = 255
FUNCTIONS: dict[str, Function] = {
    "len": Function(len, 1, 1),
    "str": Function(text, 1, 1),
    "int": Function(integer, 1, 1),
    "float": Function(floating, 1, 1),
    "bool": Function(bool, 1, 1),
    "isinstance": Function(isinstance, 2, 2),
    "min": Function(min, 1, _MANY, loops=True, keywords=frozenset({"default"})),
    "max": Function(max, 1, _MANY, loops=True, keywords=frozenset({"default"})),
    "abs": Function(abs, 1, 1),
    "round": Function(rounded, 1, 2),
    "any": Function(any, 1, 1, loops=True),
    "all": Function(all, 1, 1, loops=True),
    "sum": Function(total, 1, 1, loops=True),
    "sorted": Function(in_order, 1, 1, loops=True, keywords=frozenset({"reverse"})),
    "hash": Function(None, 1, 1),
    "regex": Function(None, 2, 2),
    "now": Function(None, 0, 0),
    "now_ns": Function(None, 0, 0),
}
TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}


SHORT_ARGUMENT: Final = 8
"""Maximum length of a short argument, in characters."""


class Method(NamedTuple):
    """A method's implementation and the arguments that it accepts."""

    call: Callable[..., Any]
    least: int
    most: int
    loops: bool = False


def _of(kind_wanted: type, wanted: str, name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    def call(value: Any, *arguments: Any) -> Any:
        if value.__class__ is not kind_wanted:
            raise EvaluationError(f"{name}() needs {wanted}, {_got(value)}")
        return native(value, *arguments)

    return call


def _on_text(name: str, least: int, most: int, native: Callable[..., Any] | None = None) -> Method:
    return Method(_of(str, "text", name, native or getattr(str, name)), least, most, loops=name == "join")


def _on_object(name: str, least: int, most: int, native: Callable[..., Any]) -> Method:
    return Method(_of(dict, "an object", name, native), least, most)


def _split(text: str, separator: str | None = None, most: int = -1) -> list[str]:
    parts = text.split(separator, most if 0 <= most < limits.ITEMS else limits.ITEMS)
    limits.within(len(parts), limits.ITEMS, "the split list")
    return parts


def _rsplit(text: str, separator: str | None = None, most: int = -1) -> list[str]:
    parts = text.rsplit(separator, most if 0 <= most < limits.ITEMS else limits.ITEMS)
    limits.within(len(parts), limits.ITEMS, "the split list")
    return parts


def _join(separator: str, values: Iterable[Any]) -> str:
    texts = guards.items(values)
    if any(text.__class__ is not str for text in texts):
        raise EvaluationError("join() needs a list of texts: write str(x) for what is not text")
    size = sum(map(len, texts)) + len(separator) * len(texts)
    limits.within(size, limits.TEXT_CHARS, "the joined text")
    return separator.join(texts)


def _values(document: dict[str, Any]) -> list[Any]:
    return list(document.values())


def _left(text: str, characters: set[str]) -> int:
    return next((i for i, character in enumerate(text) if character not in characters), len(text))


def _stripping(*, left: bool, right: bool) -> Callable[..., str]:
    def strip(text: str, characters: str | None = None) -> str:
        wanted = None if characters is None else set(characters)
        start = 0
        if left:
            start = len(text) - len(text.lstrip()) if wanted is None else _left(text, wanted)
        if not right:
            return text[start:]
        rest = text[start:]
        return rest.rstrip() if wanted is None else rest[: len(rest) - _left(rest[::-1], wanted)]

    return strip


def _rfind(text: str, part: str, start: int | None = None, end: int | None = None) -> int:
    first, last, _ = slice(start, end).indices(len(text))
    if len(part) <= SHORT_ARGUMENT:
        return text.rfind(part, start, end)
    found = text[first:last][::-1].find(part[::-1])
    return found if found < 0 else last - found - len(part)


def _rpartition(text: str, separator: str) -> tuple[str, str, str]:
    after, found, before = text[::-1].partition(separator[::-1])
    return before[::-1], found, after[::-1]


def _long_rsplit(text: str, separator: str | None = None, most: int = -1) -> list[str]:
    if separator is None:
        return _rsplit(text, separator, most)
    return [part[::-1] for part in reversed(_split(text[::-1], separator[::-1], most))]


_PLAIN = (
    "lower upper title capitalize casefold swapcase isdigit isalpha isalnum isspace isupper islower isdecimal isnumeric"
)
_PREFIXED = "removeprefix removesuffix partition rpartition"
_SEARCHES = "startswith endswith find rfind count"

METHODS: dict[str, Method] = {
    **{name: _on_text(name, 0, 0) for name in _PLAIN.split()},
    **{name: _on_text(name, 0, 1) for name in ("strip", "lstrip", "rstrip")},
    **{name: _on_text(name, 1, 1) for name in _PREFIXED.split()},
    **{name: _on_text(name, 1, 3) for name in _SEARCHES.split()},
    "split": _on_text("split", 0, 2, _split),
    "rsplit": _on_text("rsplit", 0, 2, _rsplit),
    "replace": _on_text("replace", 2, 3, limits.replace),
    "join": _on_text("join", 1, 1, _join),
    "get": _on_object("get", 1, 2, dict[str, Any].get),
    "keys": _on_object("keys", 0, 0, list),
    "values": _on_object("values", 0, 0, _values),
}

SELECTING: Final = frozenset({"get", *_SEARCHES.split(), *(name for name in _PLAIN.split() if name.startswith("is"))})
"""Methods that build nothing."""
PARTING: Final = frozenset({"split", "rsplit", "partition", "rpartition"})
"""Methods that build many small texts."""
LONG_ARGUMENTS: dict[str, Callable[..., Any]] = {
    name: _of(str, "text", name, native)
    for name, native in {
        "strip": _stripping(left=True, right=True),
        "lstrip": _stripping(left=True, right=False),
        "rstrip": _stripping(left=False, right=True),
        "rfind": _rfind,
        "rsplit": _long_rsplit,
        "rpartition": _rpartition,
    }.items()
}
"""Methods for an argument that may be long, in linear time: Python's own are faster, but then take quadratic time."""
