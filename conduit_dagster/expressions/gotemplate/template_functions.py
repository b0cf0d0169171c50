"""Functions that a Go template may call, with ``printf`` for the verbs ``%s %v %d %q %f %t``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.compiled import EvaluationError, ExpressionError, kind
from conduit_dagster.expressions.gotemplate.go_values import check_order, equal, format_go, quoted, raw_text

Format = Callable[[Any], str]
_PART = re.compile(r"%(?P<flags>[-+0]*)(?P<width>\d*)(?:\.(?P<precision>\d*))?(?P<verb>.?)", re.DOTALL)
_NUMBERS = (int, float)
# Conduit reads every number in a document as a float, so its output names that type
_TYPES: dict[type, str] = {str: "string", int: "float64", float: "float64", bool: "bool"}


def compile_format(text: str, count: int, column: int) -> Callable[..., str]:
    """Compile a format to a function of ``count`` values.

    Raises :class:`ExpressionError` if the number of verbs differs, or for an unsupported verb or width.
    """
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
        return join(piece if isinstance(piece, str) else piece(next(following)) for piece in pieces)

    # a few values give text at most a few times as large as the record
    join = "".join if len(pieces) <= 2 * limits.OPERATIONS + 1 else limits.joined
    return call


def _piece(found: re.Match[str], column: int) -> str | Format:
    if found["verb"] == "%":
        return "%"
    verb, flags = found["verb"], found["flags"]
    width, precision = int(found["width"][:9] or 0), int((found["precision"] or "0")[:9])
    is_known = verb in ("s", "v", "d", "q", "f", "t") and (found["precision"] is not None) <= (verb == "f")
    if not is_known or (verb == "q" and "+" in flags):
        raise ExpressionError(f"printf's `{found[0]}` is not translated", column, "use %s %v %d %q %f %t")
    if max(width, precision) > limits.WIDTH:
        raise ExpressionError(f"printf's `{found[0]}` is wider than {limits.WIDTH}", column)
    # %+v adds the names of a struct's fields, and no sign
    pad = _padding(flags.replace("+", "") if verb == "v" else flags, width)
    return _verb(verb, None if found["precision"] is None else precision, pad)


_Pad = Callable[[str, bool], str]
"""Function of the text of a value and whether that is a number."""


def _padding(flags: str, width: int) -> _Pad | None:
    if not flags and not width:
        return None

    def pad(text: str, is_number: bool) -> str:
        text = f"+{text}" if "+" in flags and is_number and not text.startswith("-") else text
        if "-" in flags:
            return text.ljust(width)
        if "0" not in flags:
            return text.rjust(width)
        return text.zfill(width) if is_number else text.rjust(width, "0")

    return pad


def _verb(verb: str, precision: int | None, pad: _Pad | None) -> Format:
    """Return the format of one verb. As in Go, the elements of a list or document are padded, not the whole."""
    plain = _VERBS.get(verb) or partial(_fixed, 6 if precision is None else precision)

    def nested(value: Any) -> str:
        return "<nil>" if value is None else whole(value)

    def one(value: Any) -> str:
        text = plain(value)
        if text is None:
            return _mismatch(verb, value, precision, pad)
        return text if pad is None else pad(text, value.__class__ in _NUMBERS)

    def whole(value: Any) -> str:
        if value.__class__ is list:
            return f"[{join(map(nested, value))}]"
        if value.__class__ is dict:
            return f"map[{join(f'{one(key)}:{nested(value[key])}' for key in sorted(value))}]"
        return one(value)

    # padded elements may be many times as long as the record
    join = " ".join if pad is None else partial(limits.joined, separator=" ")
    return format_go if verb == "v" and pad is None else whole


def _mismatch(verb: str, value: Any, precision: int | None, pad: _Pad | None) -> str:
    """Return Go's output for a verb that does not fit the value: no error, but ``%!d(string=x)``."""
    if value is None:
        return f"%!{verb}(<nil>)"
    text = format_go(value)
    if precision is not None and value.__class__ is str:
        text = text[:precision]
    if pad is not None:
        text = pad(text, value.__class__ in _NUMBERS)
    return f"%!{verb}({_TYPES.get(value.__class__, 'value')}={text})"


def _text(value: Any) -> str | None:
    if value.__class__ is str:
        return value
    return raw_text(value) if isinstance(value, bytes) else None


def _fixed(digits: int, value: Any) -> str | None:
    return f"{value:.{digits}f}" if value.__class__ in _NUMBERS else None


def _quoted(value: Any) -> str | None:
    text = _text(value)
    return None if text is None else quoted(text)


_VERBS: dict[str, Callable[[Any], str | None]] = {
    "s": _text,
    "v": format_go,
    "q": _quoted,
    "d": lambda value: str(value) if value.__class__ is int else None,
    "t": lambda value: format_go(value) if value.__class__ is bool else None,
}


_json = msgspec.json.Encoder().encode


class TemplateFunction(NamedTuple):
    """A function's implementation and its number of arguments."""

    call: Callable[..., Any] | None
    """``None`` if the compiler generates the call itself."""
    least: int
    most: int


def _eq(left: Any, *others: Any) -> bool:
    return any(equal(left, other) for other in others)


def _ordering(compare: Callable[[Any, Any], bool]) -> TemplateFunction:
    def call(left: Any, right: Any) -> bool:
        check_order(left, right)
        return compare(left, right)

    return TemplateFunction(call, 2, 2)


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
    """Return ``index .Metadata``: a missing key gives an empty string, since Go's metadata is a map of strings."""
    first = _field(metadata, keys[0]) or ""
    return first if len(keys) == 1 else _index(first, *keys[1:])


def _print(*values: Any) -> str:
    pieces: list[str] = []
    size = 0
    for position, value in enumerate(values):
        if position and value.__class__ is not str and values[position - 1].__class__ is not str:
            pieces.append(" ")
        pieces.append(format_go(value))
        size += len(pieces[-1])
        if position >= limits.OPERATIONS:
            limits.within(size, limits.TEXT_CHARS, "the text")
    return "".join(pieces)


def to_json(value: Any) -> str:
    """Return compact JSON with keys in their original order; raw data becomes Base64 text."""
    return _json(value).decode()


def _default(fallback: Any, value: Any = None) -> Any:
    return value or fallback


def _coalesce(*values: Any) -> Any:
    return next((value for value in values if value), None)


def _quote(*values: Any) -> str:
    texts = (quoted(format_go(value)) for value in values if value is not None)
    return " ".join(texts) if len(values) <= limits.OPERATIONS else limits.joined(texts, " ")


def _ternary(yes: Any, no: Any, test: Any) -> Any:
    if test.__class__ is not bool:
        raise EvaluationError(f"ternary needs a boolean, got {kind(test)}")
    return yes if test else no


def _has_key(document: Any, key: Any) -> bool:
    if document is not None and document.__class__ is not dict:
        raise EvaluationError(f"hasKey needs an object, got {kind(document)}")
    return _texts("hasKey", key) and key in (document or ())


def _texts(name: str, *values: Any) -> bool:
    for value in values:
        if value.__class__ is not str:
            fix = ' (write printf "%s")' if value.__class__ is bytes else ""
            raise EvaluationError(f"{name} needs text, got {kind(value)}{fix}")
    return True


def _on_text(name: str, count: int, native: Callable[..., Any]) -> TemplateFunction:
    def call(*values: Any) -> Any:
        _texts(name, *values)
        return native(*values)

    return TemplateFunction(call, count, count)


def _replace(old: str, new: str, text: str) -> str:
    return limits.replace(text, old, new)


_MANY = 255
MAKING = frozenset(
    {"printf", "print", "toString", "toJson", "quote", "replace", "upper", "lower", "trim", "trimPrefix", "trimSuffix"}
)
"""Functions that build text."""
BOOLEAN = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "not", "empty", "hasKey", "hasPrefix", "hasSuffix", "contains"}
)
"""Functions that return a boolean for any arguments."""
TABLE: dict[str, TemplateFunction] = {
    "eq": TemplateFunction(_eq, 2, _MANY),
    "ne": TemplateFunction(lambda left, right: not equal(left, right), 2, 2),
    "lt": _ordering(operator.lt),
    "le": _ordering(operator.le),
    "gt": _ordering(operator.gt),
    "ge": _ordering(operator.ge),
    "and": TemplateFunction(None, 1, _MANY),
    "or": TemplateFunction(None, 1, _MANY),
    "not": TemplateFunction(lambda value: not value, 1, 1),
    "index": TemplateFunction(_index, 1, _MANY),
    "len": TemplateFunction(_length, 1, 1),
    "printf": TemplateFunction(None, 1, _MANY),
    "print": TemplateFunction(_print, 0, _MANY),
    "toString": TemplateFunction(format_go, 1, 1),
    "toJson": TemplateFunction(to_json, 1, 1),
    "default": TemplateFunction(_default, 1, 2),
    "coalesce": TemplateFunction(_coalesce, 0, _MANY),
    "empty": TemplateFunction(lambda value: not value, 1, 1),
    "quote": TemplateFunction(_quote, 0, _MANY),
    "ternary": TemplateFunction(_ternary, 3, 3),
    "hasKey": TemplateFunction(_has_key, 2, 2),
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
