"""The methods of a Python expression. None of them formats, pads or repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.errors import EvaluationError, kind
from conduit_dagster.expressions.python import guards


class Method(NamedTuple):
    """What a call may look like."""

    call: Callable[..., Any]
    least: int
    most: int
    loops: bool = False


def _of(kind_wanted: type, wanted: str, name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    def call(value: Any, *arguments: Any) -> Any:
        if value.__class__ is not kind_wanted:
            raise EvaluationError(f"{name}() needs {wanted}, got {kind(value)}")
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
