"""Values as COPY's text: a whole column of a block at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from conduit_dagster.connectors.postgres.catalog import Column
from conduit_dagster.record import Nack

NULL = "\\N"
_SPECIAL = re.compile(r"[\\\t\n\r\0]")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_NUL_IN_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_BOOLEANS = {True: "true", False: "false"}
_encode_json = msgspec.json.Encoder().encode


class RecordError(Exception):
    """Why a record can't be a row."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.nack = Nack(f"postgres.{code}", message)


def column_texts(values: Sequence[Any], column: Column) -> Iterable[str]:
    """The column's values as COPY reads them. Raises for a block with a value that the column can't take."""
    kinds = set(map(type, values))
    if type(None) in kinds:
        return _with_nulls(values, column)
    if len(kinds) == 1 and column.kind not in ("json", "array"):
        return _uniform(values, kinds.pop(), column)
    return [_text(value, column) for value in values]


def _with_nulls(values: Sequence[Any], column: Column) -> list[str]:
    if column.required:
        raise RecordError("not_null", f"the column {column.name} takes no null")
    present = iter(column_texts([value for value in values if value is not None], column))
    return [NULL if value is None else next(present) for value in values]


def _uniform(values: Sequence[Any], kind: type, column: Column) -> Iterable[str]:
    if kind is str:
        return values if _SPECIAL.search("\x1f".join(values)) is None else map(escaped, values)
    if kind is int and column.kind in ("integer", "number", "text"):
        _check_bits(min(values), max(values), column)
        return map(repr, values)
    if kind is bool and column.kind in ("boolean", "text"):
        return map(_BOOLEANS.__getitem__, values)
    if kind is float and column.kind in ("number", "text"):
        return map(repr, values)
    return [_text(value, column) for value in values]


def _check_bits(least: int, most: int, column: Column) -> None:
    if column.bits and not -(1 << column.bits) <= least <= most < 1 << column.bits:
        worst = least if least < -(1 << column.bits) else most
        raise RecordError("out_of_range", f"{_short(worst)} does not fit the column {column.name} ({column.type})")


def escaped(text: str) -> str:
    """Text as one field of COPY. Raises for a NUL, which PostgreSQL can't hold."""
    if _SPECIAL.search(text) is None:
        return text
    if "\0" in text:
        raise RecordError("nul", "the text holds a NUL character, which PostgreSQL can't store")
    for character, replacement in _ESCAPES.items():
        text = text.replace(character, replacement)
    return text


def _text(value: Any, column: Column) -> str:
    if column.kind == "json":
        return escaped(_json_text(value))
    if column.kind == "array" and isinstance(value, list | tuple):
        return escaped(_array(value))
    render = _RENDER.get(type(value))
    if render is None:
        raise _misfit(value, column)
    return escaped(render(value, column))


def _misfit(value: Any, column: Column) -> RecordError:
    kind = {dict: "an object", list: "a list", bool: "a boolean"}.get(type(value), f"a {type(value).__name__}")
    return RecordError("type", f"{kind} does not fit the column {column.name} ({column.type})")


def _boolean(value: bool, column: Column) -> str:
    if column.kind in ("integer", "number"):
        raise _misfit(value, column)
    return _BOOLEANS[value]


def _integer(value: int, column: Column) -> str:
    _check_bits(value, value, column)
    return repr(value)


def _float(value: float, column: Column) -> str:
    if column.kind != "integer":
        return repr(value)
    if not value.is_integer():
        raise _misfit(value, column)
    return _integer(int(value), column)


def _bytes(value: bytes, column: Column) -> str:
    if column.kind == "bytea" or not column.known:
        return "\\x" + value.hex()
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RecordError("encoding", f"the column {column.name} takes text, and this is not UTF-8") from None


def _nested(value: Any, column: Column) -> str:
    if column.kind != "text":
        raise _misfit(value, column)
    return _json_text(value)


_RENDER: dict[type, Callable[[Any, Column], str]] = {
    str: lambda value, _: value,
    bool: _boolean,
    int: _integer,
    float: _float,
    bytes: _bytes,
    dict: _nested,
    list: _nested,
    tuple: _nested,
    Decimal: lambda value, _: str(value),
    UUID: lambda value, _: str(value),
    **dict.fromkeys((datetime, date, time), lambda value, _: value.isoformat()),
}


def _json_text(value: Any) -> str:
    if type(value) is bytes:
        return value.decode()
    try:
        text = _encode_json(value).decode()
    except OverflowError:
        # integers beyond 64 bits are numbers in JSON and in jsonb all the same
        text = json.dumps(value, ensure_ascii=False)
    if "\\u0000" in text and _NUL_IN_JSON.search(text):
        raise RecordError("nul", "the document holds a NUL character, which PostgreSQL can't store")
    return text


def _array(values: Sequence[Any]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return _array(value)
    if isinstance(value, bool):
        return _BOOLEANS[value]
    if isinstance(value, int | float):
        return repr(value)
    text = value if isinstance(value, str) else _json_text(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
