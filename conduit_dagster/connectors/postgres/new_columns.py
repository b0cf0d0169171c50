"""The column types of a new table, found in the values of its first records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from conduit_dagster.whole_numbers import loses_digits

_TYPES: Final[dict[type, str]] = {
    str: "text",
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    dict: "jsonb",
    list: "jsonb",
    bytes: "bytea",
    Decimal: "numeric",
    datetime: "timestamptz",
    date: "date",
}
_LARGE: Final = "bigint, not double precision"
"""A ``bigint`` with numbers that would lose digits in a ``double precision``."""
_NUMBERS: Final = ("bigint", _LARGE, "numeric", "double precision")


def column_type(values: Sequence[Any]) -> str | None:
    """Return the column type that holds all values, for :func:`common`; None if all are null."""
    found = {_TYPES.get(kind, "text") for kind in set(map(type, values)) if kind is not type(None)}
    if "bigint" in found:
        found = (found - {"bigint"}) | {_whole([value for value in values if type(value) is int])}
    return common(found)


def _whole(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    if least < -(1 << 63) or most >= 1 << 63:
        return "numeric"
    if least >= -(1 << 53) and most <= 1 << 53:
        return "bigint"
    return _LARGE if any(loses_digits(number, 53) for number in numbers) else "bigint"


def common(types: Iterable[str | None]) -> str | None:
    """Return the common type of several column types: numbers widen, any other mixture becomes text."""
    found = {name for name in types if name is not None}
    if len(found) <= 1:
        return next(iter(found), None)
    if not found <= set(_NUMBERS):
        return "text"
    if "numeric" in found or {_LARGE, "double precision"} <= found:
        return "numeric"
    return "double precision" if "double precision" in found else _LARGE


def declared(types: Iterable[str | None]) -> str:
    """Return the type of a new column for several ones of :func:`common`, as SQL."""
    found = common(types) or "text"
    return "bigint" if found == _LARGE else found
