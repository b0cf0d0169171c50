"""Conversion of Spark's results to values that a document may hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypedDict

import msgspec

Change = Callable[[Any], Any]
_TEXT = frozenset({"string", "date", "timestamp", "timestamp_ntz", "binary"})
_NUMBERS: Mapping[str, Any] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int | None),
    **dict.fromkeys(("float", "double"), float | None),
    "boolean": bool | None,
}


class NotJsonError(Exception):
    """Raised for a result that a document can't hold."""


class Answers:
    """Reader of the answers to one query; ``types`` are its output types as Spark's JSON schema."""

    def __init__(self, types: str) -> None:
        fields = [field for field in json.loads(types)["fields"] if field["name"] != "where"]
        kind: Any = TypedDict("Answer", {field["name"]: _kind(field["type"]) for field in fields})  # type: ignore[misc]  # pyright: ignore
        self._decode: Callable[[bytes], dict[str, Any]] = msgspec.json.Decoder(kind).decode
        changes = {field["name"]: _change(field["type"]) for field in fields}
        self._changes = {name: change for name, change in changes.items() if change is not None}

    def read(self, answer: bytes) -> dict[str, Any]:
        """Return the results by name. Raises :class:`NotJsonError`."""
        try:
            found = self._decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NotJsonError(str(error)) from None
        for name, change in self._changes.items():
            found[name] = change(found[name])
        return found


def _kind(of: Any) -> Any:
    """Return the type for msgspec to decode. NaN and infinities are strings in Spark's JSON, not numbers."""
    if isinstance(of, str):
        return _simple(of)
    match of["type"]:
        case "array":
            return list[_kind(of["elementType"])] | None
        case "map":
            return dict[str, _kind(of["valueType"])] | None
        case "struct":
            fields = {field["name"]: _kind(field["type"]) for field in of["fields"]}
            return TypedDict("Inner", fields) | None  # type: ignore[misc]  # pyright: ignore
        case _:
            return Any


def _simple(of: str) -> Any:
    if of in _NUMBERS:
        return _NUMBERS[of]
    if of.startswith("decimal("):
        return int | None if of.endswith(",0)") else Decimal | None
    return str | None if of in _TEXT else Any


def _change(of: Any) -> Change | None:
    """Return a function that converts the decimals in a value to numbers; None if the type has no decimals."""
    if isinstance(of, str):
        return _number if of.startswith("decimal(") and not of.endswith(",0)") else None
    match of["type"]:
        case "array":
            return _each(_change(of["elementType"]))
        case "map":
            return _values(_change(of["valueType"]))
        case "struct":
            return _fields({field["name"]: _change(field["type"]) for field in of["fields"]})
        case _:
            return None


def _number(value: Decimal | None) -> float | None:
    if value is None:
        return None
    number = float(value)
    # the shortest text of the float must equal the decimal, otherwise a digit would be lost
    if Decimal(repr(number)) != value:
        raise NotJsonError(
            f"a decimal of {len(value.as_tuple().digits)} digits has more digits than a JSON number keeps"
        )
    return number


def _each(change: Change | None) -> Change | None:
    return change and (lambda items: None if items is None else [change(item) for item in items])


def _values(change: Change | None) -> Change | None:
    return change and (lambda items: None if items is None else {key: change(item) for key, item in items.items()})


def _fields(changes: Mapping[str, Change | None]) -> Change | None:
    own = {name: change for name, change in changes.items() if change is not None}
    if not own:
        return None

    def change(items: dict[str, Any] | None) -> dict[str, Any] | None:
        return items and {name: own[name](item) if name in own else item for name, item in items.items()}

    return change
