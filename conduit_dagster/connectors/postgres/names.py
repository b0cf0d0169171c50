"""Names of tables and columns, as settings write them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from psycopg import sql

NAME_BYTES = 63
"""PostgreSQL cuts longer names off silently, so a longer one would never be found."""


class TableName(msgspec.Struct, frozen=True, order=True):
    """A table in its schema."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> sql.Identifier:
        """As SQL."""
        return sql.Identifier(self.schema, self.name)


class _Piece(NamedTuple):
    text: str
    rest: str


def table_name(text: str, schema: str) -> TableName:
    """``name``, ``schema.name`` or either part in double quotes. Raises ``ValueError`` for what names no table."""
    first = _piece(text.strip())
    if not first.rest:
        return TableName(schema, _checked(first.text))
    if not first.rest.startswith("."):
        raise ValueError(f"{text!r} is no name of a table")
    return TableName(_checked(first.text), _checked(_last(first.rest[1:])))


def _piece(text: str) -> _Piece:
    if text.startswith('"'):
        end = _closing(text)
        if end > 0:
            return _Piece(text[1:end].replace('""', '"'), text[end + 1 :])
    name, dot, rest = text.partition(".")
    return _Piece(name, dot + rest)


def _closing(text: str) -> int:
    """Where the quote at the beginning ends; 0 where it does not."""
    at = text.find('"', 1)
    while at > 0 and text[at + 1 : at + 2] == '"':
        at = text.find('"', at + 2)
    return max(at, 0)


def _last(text: str) -> str:
    piece = _piece(text)
    return piece.text if not piece.rest else text


def _checked(name: str) -> str:
    if not name or "\0" in name:
        raise ValueError("the name of the table is empty" if not name else "the name of the table holds a NUL")
    if len(name.encode()) > NAME_BYTES:
        raise ValueError(f"the name {name[:NAME_BYTES]}… is longer than {NAME_BYTES} bytes")
    return name


def listed(text: str) -> tuple[str, ...]:
    """The names of a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def renamed(text: str) -> dict[str, str]:
    """``field:column,…``. Raises ``ValueError`` for a pair without a colon and for a name that is there twice."""
    pairs = [item.partition(":") for item in listed(text)]
    if bad := [f"{field}{colon}{column}" for field, colon, column in pairs if not field.strip() or not column.strip()]:
        raise ValueError(f"{bad[0]!r} is no pair of a field and a column")
    made = {field.strip(): column.strip() for field, _, column in pairs}
    if len(made) < len(pairs) or len(set(made.values())) < len(pairs):
        raise ValueError("a field or a column is named twice")
    return made
