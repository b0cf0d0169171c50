"""Printing, comparing and parsing of a record's values by Go's rules."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, NoReturn

from conduit_dagster.expressions.compiled import EvaluationError, kind

BOOLEANS: Final[dict[str, bool]] = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
"""Texts that Go's ``strconv.ParseBool`` accepts: no trimming, and case matters."""
_ESCAPES = {
    **{chr(code): f"\\{letter}" for code, letter in zip(range(7, 14), "abtnvfr", strict=True)},
    "\\": "\\\\",
    '"': '\\"',
}


def format_go(value: Any) -> str:
    """Format a JSON value as Go's ``%v``: ``1.0`` is ``1``, ``1000000.0`` is ``1e+06``, an object ``map[a:2 b:1]``.

    Integers of any size are printed in full; Conduit holds every number as a float and prints 1000000 as 1e+06. Raw
    data is printed as text, where Go prints a list of bytes.
    """
    own = _FORMATS.get(value.__class__)
    return own(value) if own is not None else str(value)


def _list(values: Any) -> str:
    return f"[{' '.join(map(format_go, values))}]"


def _object(document: dict[str, Any]) -> str:
    return f"map[{' '.join(f'{key}:{format_go(document[key])}' for key in sorted(document))}]"


def format_float(value: float) -> str:
    """Return the shortest text that parses to the same float, with an exponent below 1e-4 and from 1e6 on."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "+Inf"}.get(str(value), "-Inf")
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return repr(value).removesuffix(".0")
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, *rest = map(str, digits)
    power = int(exponent) + len(rest)
    return f"{'-' * sign}{first}{'.' * bool(rest)}{''.join(rest)}e{'-' if power < 0 else '+'}{abs(power):02d}"


def raw_text(data: bytes) -> str:
    """Return raw data as text. Raises :class:`EvaluationError` if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EvaluationError("raw data that is not UTF-8 cannot be printed") from None


_FORMATS: dict[type, Any] = {
    str: lambda value: value,
    type(None): lambda _: "<nil>",
    bool: lambda value: "true" if value else "false",
    float: format_float,
    list: _list,
    tuple: _list,
    dict: _object,
    bytes: raw_text,
}


def printed(value: Any) -> str:
    """Return the output of an action: :func:`format_go`, but ``<no value>`` for null and for a missing field."""
    if value.__class__ is str:
        return value
    return "<no value>" if value is None else format_go(value)


def quoted(text: str) -> str:
    """Quote text as Go's ``strconv.Quote`` does."""
    if text.isprintable():
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return f'"{"".join(_ESCAPES.get(c) or _quoted(c) for c in text)}"'


def _quoted(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def is_part_of_bool(text: str) -> bool:
    """Return whether a text with something before or behind it can be one of :data:`BOOLEANS`."""
    return any(text in word for word in BOOLEANS)


def parse_bool(text: str) -> bool:
    """Parse a template's output as a boolean. Raises :class:`EvaluationError`."""
    if text not in BOOLEANS:
        raise EvaluationError(f"the template gave {quoted(text[:200])}, which is not a boolean")
    return BOOLEANS[text]


def basic(value: Any) -> str:
    """Return the kind that determines comparability. Integers and floats are one kind: ours are exact."""
    return _BASIC.get(value.__class__, kind(value))


_NUMBERS = frozenset({int, float})
_BASIC: dict[type, str] = {int: "number", float: "number", str: "string", bool: "bool", type(None): "nil"}


def incompatible(left: Any, right: Any) -> NoReturn:
    """Raise Go's error for two kinds that cannot be compared."""
    raise EvaluationError(f"incompatible types for comparison: {basic(left)} and {basic(right)}")


def equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal by Go's ``eq``.

    Null equals only null; otherwise comparing different kinds, lists or objects is an error.
    """
    if left.__class__ in _NUMBERS and right.__class__ in _NUMBERS:
        return left == right
    if left is None or right is None:
        return left is right
    if basic(left) != basic(right):
        incompatible(left, right)
    if left.__class__ not in _BASIC:
        raise EvaluationError(f"{kind(left)} cannot be compared")
    return left == right


def check_order(left: Any, right: Any) -> None:
    """Raise Go's error unless both values are numbers or both are strings: other values have no order."""
    if left.__class__ in _NUMBERS and right.__class__ in _NUMBERS:
        return
    if basic(left) != basic(right):
        incompatible(left, right)
    if left.__class__ is not str:
        raise EvaluationError(f"invalid type for comparison: {kind(left)} has no order")
