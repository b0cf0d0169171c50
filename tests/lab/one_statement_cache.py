"""Compiled SQL statements for all state stores of a process: each test has a store of its own, and few new statements.

A fifth of the driver's processor time in a short run is SQLAlchemy's compiler; a process of users' has one store.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

_cache: LRUCache[Any, Any] = LRUCache(2000)


def share_statements() -> None:
    """From now on, for SQLite: its dialects count as equal, because the key of a statement contains the dialect."""
    SQLiteDialect_pysqlite.__eq__ = lambda self, other: type(self) is type(other)
    SQLiteDialect_pysqlite.__hash__ = lambda self: hash(type(self))
    event.listen(sa.Engine, "engine_connect", _use_cache)


def _use_cache(connection: sa.Connection) -> None:
    if isinstance(connection.dialect, SQLiteDialect_pysqlite):
        connection.execution_options(compiled_cache=_cache)
