"""The functions that a Go template may call."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.errors import EvaluationError, kind
from conduit_dagster.expressions.gotemplate.values import check_order, equal, format_go, quoted

_json = msgspec.json.Encoder().encode


class Function(NamedTuple):
    """How a function is called."""

    call: Callable[..., Any] | None
    """``None`` where the compiler makes the call itself."""
    least: int
    most: int


def _eq(left: Any, *others: Any) -> bool:
    return any(equal(left, other) for other in others)


def _ordering(compare: Callable[[Any, Any], bool]) -> Function:
    def call(left: Any, right: Any) -> bool:
        check_order(left, right)
        return compare(left, right)

    return Function(call, 2, 2)


def _length(value: Any) -> int:
    if value.__class__ is str:
        return len(value.encode(errors="surrogatepass"))
    if value.__class__ in (dict, list, bytes):
        return len(value)
    raise EvaluationError(f"len of {kind(value)}")


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if value.__class__ not in (dict, list):
            raise EvaluationError(f"index of {kind(value)}")
        value = _field(value, key) if value.__class__ is dict else _element(value, key)
    return value


def _field(document: dict[str, Any], key: Any) -> Any:
    if key.__class__ is not str:
        raise EvaluationError(f"an object is indexed with text, not {kind(key)}")
    return document.get(key)


def _element(values: list[Any], key: Any) -> Any:
    if key.__class__ is not int:
        raise EvaluationError(f"a list is indexed with an integer, not {format_go(key)}")
    if not 0 <= key < len(values):
        raise EvaluationError(f"index out of range: {key}")
    return values[key]


def index_metadata(metadata: dict[str, str], *keys: Any) -> Any:
    """``index .Metadata``: a missing key is an empty text, since Go's metadata is a map of texts."""
    first = _field(metadata, keys[0]) or ""
    return first if len(keys) == 1 else _index(first, *keys[1:])


def _print(*values: Any) -> str:
    pieces: list[str] = []
    for position, value in enumerate(values):
        if position and value.__class__ is not str and values[position - 1].__class__ is not str:
            pieces.append(" ")
        pieces.append(format_go(value))
    return "".join(pieces)


def to_json(value: Any) -> str:
    """Compact JSON with keys as they came; raw data is base64 text."""
    return _json(value).decode()


def _default(fallback: Any, value: Any = None) -> Any:
    return value or fallback


def _coalesce(*values: Any) -> Any:
    return next((value for value in values if value), None)


def _quote(*values: Any) -> str:
    return " ".join(quoted(format_go(value)) for value in values if value is not None)


def _ternary(yes: Any, no: Any, test: Any) -> Any:
    if test.__class__ is not bool:
        raise EvaluationError(f"ternary needs a boolean, got {kind(test)}")
    return yes if test else no


def _has_key(document: Any, key: Any) -> bool:
    if document.__class__ is not dict:
        raise EvaluationError(f"hasKey needs an object, got {kind(document)}")
    return _texts("hasKey", key) and key in document


def _texts(name: str, *values: Any) -> bool:
    for value in values:
        if value.__class__ is not str:
            fix = ' (write printf "%s")' if value.__class__ is bytes else ""
            raise EvaluationError(f"{name} needs text, got {kind(value)}{fix}")
    return True


def _on_text(name: str, count: int, native: Callable[..., Any]) -> Function:
    def call(*values: Any) -> Any:
        _texts(name, *values)
        return native(*values)

    return Function(call, count, count)


def _replace(old: str, new: str, text: str) -> str:
    return limits.replace(text, old, new)


_MANY = 255
BOOLEAN = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "not", "empty", "hasKey", "hasPrefix", "hasSuffix", "contains"}
)
"""The functions that give a boolean whatever they are given."""
TABLE: dict[str, Function] = {
    "eq": Function(_eq, 2, _MANY),
    "ne": Function(lambda left, right: not equal(left, right), 2, 2),
    "lt": _ordering(operator.lt),
    "le": _ordering(operator.le),
    "gt": _ordering(operator.gt),
    "ge": _ordering(operator.ge),
    "and": Function(None, 1, _MANY),
    "or": Function(None, 1, _MANY),
    "not": Function(lambda value: not value, 1, 1),
    "index": Function(_index, 1, _MANY),
    "len": Function(_length, 1, 1),
    "printf": Function(None, 1, _MANY),
    "print": Function(_print, 0, _MANY),
    "toString": Function(format_go, 1, 1),
    "toJson": Function(to_json, 1, 1),
    "default": Function(_default, 1, 2),
    "coalesce": Function(_coalesce, 0, _MANY),
    "empty": Function(lambda value: not value, 1, 1),
    "quote": Function(_quote, 0, _MANY),
    "ternary": Function(_ternary, 3, 3),
    "hasKey": Function(_has_key, 2, 2),
    "upper": _on_text("upper", 1, str.upper),
    "lower": _on_text("lower", 1, str.lower),
    "trim": _on_text("trim", 1, str.strip),
    "replace": _on_text("replace", 3, _replace),
    "hasPrefix": _on_text("hasPrefix", 2, lambda part, text: text.startswith(part)),
    "hasSuffix": _on_text("hasSuffix", 2, lambda part, text: text.endswith(part)),
    "contains": _on_text("contains", 2, lambda part, text: part in text),
    "trimPrefix": _on_text("trimPrefix", 2, lambda part, text: text.removeprefix(part)),
    "trimSuffix": _on_text("trimSuffix", 2, lambda part, text: text.removesuffix(part)),
}
