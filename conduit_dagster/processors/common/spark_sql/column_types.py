"""The setting ``columns``: names and types of fields, written as in Spark's DDL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
