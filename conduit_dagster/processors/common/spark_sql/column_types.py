"""Types of a query's columns: the setting ``columns``, written as in Spark's DDL, and results as values of a record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, TypedDict

import msgspec

from conduit_dagster.spark.sql.query import SIMPLE, ColumnType


class SqlTextError(Exception):
    """An error in the text of a query or of its column types."""

    def __init__(self, message: str, fix: str, place: int = 0) -> None:
        """``place``: offset of the error in the text, from 0."""
        super().__init__(message)
        self.message, self.fix, self.place = message, fix, place


_OPENING = "CREATE TABLE record ("
_SIMPLE = {
    "TEXT": "string",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
    **{name.upper(): name for name in SIMPLE if name not in ("string", "timestamp", "timestamp_ntz")},
}
_INSTEAD = {
    "FLOAT": "DOUBLE, which holds the record's numbers as they are",
    "BINARY": "STRING, and unbase64(...) in the query",
    "VARCHAR": "STRING",
    "CHAR": "STRING",
    "VARIANT": "STRING, and parse_json(...) in the query",
}
_DIGITS = 38


def parse_columns(text: str) -> dict[str, ColumnType]:
    """Return the types by name, in order; none for blank text. Raises :class:`SqlTextError`."""
    if not text.strip():
        return {}
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        parsed = sqlglot.parse(f"{_OPENING}{text})", dialect="spark")
    except SqlglotError as error:
        raise _unreadable(_said(error), _place(error)) from None
    create = parsed[0] if len(parsed) == 1 else None
    table = create.this if isinstance(create, exp.Create) and create.expression is None else None
    if not isinstance(table, exp.Schema):
        raise _unreadable("not a list of columns", 0)
    found: dict[str, ColumnType] = {}
    for column in table.expressions:
        if not isinstance(column, exp.ColumnDef) or column.args.get("constraints") or column.kind is None:
            raise _unreadable(f"{column.sql(dialect='spark')} is not a name with a type", _start(column))
        if column.name in found:
            raise SqlTextError(f"the column {column.name} is listed twice", "remove one of the two", _start(column))
        found[column.name] = _type(column.kind, _start(column))
    return found


def _unreadable(message: str, place: int) -> SqlTextError:
    return SqlTextError(message, "write names and types: id BIGINT, amount DECIMAL(10, 2), `a b` STRING", place)


def _said(error: Any) -> str:
    details = getattr(error, "errors", None)
    return str(details[0]["description"]) if details else str(error).splitlines()[0]


def _place(error: Any) -> int:
    details = getattr(error, "errors", None)
    if not details or details[0].get("line") != 1:
        return 0
    return max(0, details[0]["col"] - len(_OPENING) - 1)


def _start(node: Any) -> int:
    name = node.this if hasattr(node.this, "meta") else node
    return max(0, int(name.meta.get("start", 0)) - len(_OPENING))


def _type(kind: Any, place: int) -> ColumnType:
    name = str(kind.this.name)
    if name in _SIMPLE and not kind.expressions:
        return _SIMPLE[name]
    if name == "DECIMAL":
        return _decimal([int(one.name) for one in kind.expressions], place)
    inner = kind.expressions
    if name == "ARRAY" and len(inner) == 1:
        return ("array", _type(inner[0], place))
    if name == "MAP" and len(inner) == 2:
        if _type(inner[0], place) != "string":
            raise SqlTextError("the keys of a document are text", "write MAP<STRING, …>", place)
        return ("map", _type(inner[1], place))
    if name == "STRUCT" and inner:
        return ("struct", tuple(_fields(inner, place)))
    raise _no_type(kind.sql(dialect="spark"), name, place)


def _no_type(text: str, name: str, place: int) -> SqlTextError:
    fix = _INSTEAD.get(name, f"{', '.join(SIMPLE).upper()}, DECIMAL(p, s), ARRAY<…>, MAP<STRING, …> or STRUCT<…>")
    return SqlTextError(f"the type {text} is not a type of a record's field", f"use {fix}", place)


def _decimal(numbers: list[int], place: int) -> ColumnType:
    digits, scale = [*numbers, *(10, 0)[len(numbers) :]]
    if not 1 <= digits <= _DIGITS or not 0 <= scale <= digits:
        message = f"DECIMAL({digits}, {scale}) has more digits than Spark's"
        raise SqlTextError(message, f"at most {_DIGITS} digits, including those after the point", place)
    return ("decimal", digits, scale)


def _fields(inner: list[Any], place: int) -> Iterator[tuple[str, ColumnType]]:
    names: set[str] = set()
    for field in inner:
        if getattr(field, "kind", None) is None or field.name in names:
            message = f"{field.sql(dialect='spark')} is not a name with a type, or is listed twice"
            raise SqlTextError(message, "write STRUCT<name: STRING, age: INT>", place)
        names.add(field.name)
        yield field.name, _type(field.kind, place)


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
            return _of_fields({field["name"]: _change(field["type"]) for field in of["fields"]})
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


def _of_fields(changes: Mapping[str, Change | None]) -> Change | None:
    own = {name: change for name, change in changes.items() if change is not None}
    if not own:
        return None

    def change(items: dict[str, Any] | None) -> dict[str, Any] | None:
        return items and {name: own[name](item) if name in own else item for name, item in items.items()}

    return change
