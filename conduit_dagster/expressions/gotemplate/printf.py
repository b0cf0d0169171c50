"""Go's ``printf``, for the verbs ``%s %v %d %q %f %t`` with bounded widths."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.errors import ExpressionError
from conduit_dagster.expressions.gotemplate.values import format_go, quoted, raw_text

Format = Callable[[Any], str]
_PART = re.compile(r"%(?P<flags>[-+0]*)(?P<width>\d*)(?:\.(?P<precision>\d*))?(?P<verb>.?)", re.DOTALL)
# Conduit reads every number of a document as a float, so that is the type its output names
_TYPES: dict[type, str] = {str: "string", int: "float64", float: "float64", bool: "bool"}


def compile_format(text: str, count: int, column: int) -> Callable[..., str]:
    """A function of ``count`` values. Raises :class:`ExpressionError` where verbs and values do not match."""
    pieces: list[str | Format] = []
    position = 0
    for found in _PART.finditer(text):
        pieces += [text[position : found.start()], _piece(found, column)]
        position = found.end()
    pieces.append(text[position:])
    verbs = sum(callable(piece) for piece in pieces)
    if verbs != count:
        raise ExpressionError(f"printf's format takes {verbs} values and is given {count}", column)
    return _joining(pieces)


def _joining(pieces: list[str | Format]) -> Callable[..., str]:
    def call(*values: Any) -> str:
        following = iter(values)
        return "".join(piece if isinstance(piece, str) else piece(next(following)) for piece in pieces)

    return call


def _piece(found: re.Match[str], column: int) -> str | Format:
    if found["verb"] == "%":
        return "%"
    width, precision = int(found["width"][:9] or 0), int((found["precision"] or "0")[:9])
    if found["verb"] not in ("s", "v", "d", "q", "f", "t") or (found["precision"] is not None) > (found["verb"] == "f"):
        raise ExpressionError(f"printf's `{found[0]}` is not translated", column, "use %s %v %d %q %f %t")
    if max(width, precision) > limits.WIDTH:
        raise ExpressionError(f"printf's `{found[0]}` is wider than {limits.WIDTH}", column)
    return _padded(found["flags"], width, _verb(found["verb"], None if found["precision"] is None else precision))


def _padded(flags: str, width: int, body: Format) -> Format:
    if not flags and not width:
        return body

    def call(value: Any) -> str:
        number = value.__class__ in (int, float)
        text = body(value)
        text = f"+{text}" if "+" in flags and number and not text.startswith("-") else text
        if "-" in flags:
            return text.ljust(width)
        return text.zfill(width) if "0" in flags and number else text.rjust(width)

    return call


def _verb(verb: str, precision: int | None) -> Format:
    plain = _VERBS[verb]

    def nested(value: Any) -> str:
        if value is None:
            return "<nil>"
        return whole(value) if value.__class__ in (list, dict) else one(value)

    def one(value: Any) -> str:
        if verb == "f" and value.__class__ in (int, float):
            return f"{value:.{6 if precision is None else precision}f}"
        text = plain(value)
        return text if text is not None else mismatch(verb, value)

    def whole(value: Any) -> str:
        if isinstance(value, list):
            return f"[{' '.join(map(nested, value))}]"
        if isinstance(value, dict):
            return f"map[{' '.join(f'{key}:{nested(value[key])}' for key in sorted(value))}]"
        return one(value)

    return format_go if verb == "v" else whole


def mismatch(verb: str, value: Any) -> str:
    """What Go prints where the verb does not fit the value: no error, but ``%!d(string=x)``."""
    if value is None:
        return f"%!{verb}(<nil>)"
    return f"%!{verb}({_TYPES.get(value.__class__, 'value')}={format_go(value)})"


def _text(value: Any) -> str | None:
    if value.__class__ is str:
        return value
    return raw_text(value) if isinstance(value, bytes) else None


def _quoted(value: Any) -> str | None:
    text = _text(value)
    return None if text is None else quoted(text)


_VERBS: dict[str, Callable[[Any], str | None]] = {
    "s": _text,
    "v": format_go,
    "q": _quoted,
    "d": lambda value: str(value) if value.__class__ is int else None,
    "t": lambda value: format_go(value) if value.__class__ is bool else None,
    "f": lambda _: None,
}
