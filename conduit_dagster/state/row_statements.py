"""Inserts and updates of rows by key. Each statement is built once: that takes longer than executing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

_Names = tuple[str, ...]
_built = lru_cache(maxsize=256)


def insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, each with a value for every column."""
    if rows:
        connection.execute(_insert(table), list(rows))


def insert_if_absent(connection: sa.Connection, table: sa.Table, **values: Any) -> bool:
    """Insert a row unless its key exists; return whether it was inserted. Of two concurrent calls one inserts."""
    return connection.execute(_insert_if_absent(connection.dialect.name, table), values).first() is not None


def put(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]], rising: str = "") -> None:
    """Insert or update rows in one statement; an existing row stays as it is unless its column ``rising`` grows."""
    if rows:
        connection.execute(_put(connection.dialect.name, table, tuple(rows[0]), rising), list(rows))


def update(
    connection: sa.Connection,
    table: sa.Table,
    key: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    add: Mapping[str, int] | None = None,
) -> bool:
    """Set ``values`` and increase columns by ``add`` in the rows with this key; return whether there are any.

    A key of a tuple stands for each of its values.
    """
    values, add = values or {}, add or {}
    several = tuple(name for name, value in key.items() if isinstance(value, tuple))
    statement = _update(table, tuple(key), several, tuple(values), tuple(add))
    bound = {**_prefixed(_KEY, key), **_prefixed(_NEW, values), **_prefixed(_ADD, add)}
    return connection.execute(statement, bound).rowcount > 0


# a name of a column alone is reserved in an update
_KEY, _NEW, _ADD = "key_", "new_", "add_"


def _bound_to(column: sa.Column[Any], prefix: str = _NEW, several: bool = False) -> sa.BindParameter[Any]:
    return sa.bindparam(f"{prefix}{column.name}", type_=column.type, expanding=several)


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in values.items()}


@_built
def _insert(table: sa.Table) -> sa.Insert:
    return sa.insert(table)


@_built
def _insert_if_absent(dialect: str, table: sa.Table) -> Any:
    return _of_dialect(dialect, table).on_conflict_do_nothing().returning(sa.literal_column("1"))


@_built
def _put(dialect: str, table: sa.Table, names: _Names, rising: str) -> sa.Insert:
    start, keys = _of_dialect(dialect, table), [column.name for column in table.primary_key]
    changed = {name: start.excluded[name] for name in names if name not in keys}
    where = table.c[rising] < start.excluded[rising] if rising else None
    return start.on_conflict_do_update(index_elements=keys, set_=changed, where=where)


@_built
def _update(table: sa.Table, key: _Names, several: _Names, values: _Names, add: _Names) -> sa.Update:
    column = table.c
    where = [
        column[name].in_(_bound_to(column[name], _KEY, True))
        if name in several
        else column[name] == _bound_to(column[name], _KEY)
        for name in key
    ]
    new = {name: _bound_to(column[name]) for name in values}
    more = {name: column[name] + _bound_to(column[name], _ADD) for name in add}
    return sa.update(table).where(*where).values(new | more)


def _of_dialect(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    # an SQLite store needs nothing that the other dialect imports
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)
