"""Types of a table that is to be created, from the values that were staged for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

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
_NUMBERS: Final = ("bigint", "numeric", "double precision")


def column_type(values: Sequence[Any]) -> str | None:
    """The type that holds all of them; None where all are null."""
    found = {_TYPES.get(kind, "text") for kind in set(map(type, values)) if kind is not type(None)}
    if "bigint" in found and any(type(v) is int and not -(1 << 63) <= v < 1 << 63 for v in values):
        found = (found - {"bigint"}) | {"numeric"}
    return common(found)


def common(types: Iterable[str | None]) -> str | None:
    """The type that holds what any of these holds: numbers widen, anything else that differs is text."""
    found = {name for name in types if name is not None}
    if len(found) <= 1:
        return next(iter(found), None)
    if found <= set(_NUMBERS):
        return "numeric" if "numeric" in found else "double precision"
    return "text"
