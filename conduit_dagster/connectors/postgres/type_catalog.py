"""What a task asks the database about the tables that it reads: types that somebody created, the order of keys."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from psycopg import sql

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.row_values import Decode, OwnType, decoder_of
from conduit_dagster.connectors.postgres.seen_changes import RowKey
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_tables import KeyColumn, key_by_oid, key_of, literals

_TYPE = """
    SELECT t.typtype, t.typname, t.typbasetype, CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END
    FROM pg_type t WHERE t.oid = %s
"""


class TypeCatalog:
    """Connects with the first question, and to most tables there is none."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._keys: dict[str, list[KeyColumn]] = {}
        self._connection: Connection | None = None
        self._types: dict[int, OwnType | None] = {}
        self._ordered: dict[tuple[str, tuple[str, ...], tuple[str, ...]], bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def decoder(self, oid: int) -> Decode:
        """Return the decoder of a type. Raises ``psycopg.Error``."""
        return decoder_of(oid, self._own_type)

    def _own_type(self, oid: int) -> OwnType | None:
        if oid not in self._types:
            row = self._asked().execute(_TYPE, (oid,)).fetchone()
            self._types[oid] = None if row is None else OwnType(*row)
        return self._types[oid]

    def keys(self, oid: int) -> list[str]:
        """Return the key columns of a table; none if it was dropped."""
        return key_by_oid(self._asked(), oid)

    def not_behind(self, table: str, key: RowKey, bound: RowKey) -> bool:
        """Return whether a key is not behind another in the table's own order, which its collation decides."""
        asked = (table, tuple(key), tuple(bound))
        if asked not in self._ordered:
            types = [column.type for column in self._key(table)]
            statement = sql.SQL("SELECT ({}) <= ({})").format(
                literals(tuple(key), types), literals(tuple(bound), types)
            )
            row = self._asked().execute(statement).fetchone()
            self._ordered[asked] = bool(row and row[0])
        return self._ordered[asked]

    def _key(self, table: str) -> list[KeyColumn]:
        if table not in self._keys:
            schema, _, name = table.partition(".")
            self._keys[table] = key_of(self._asked(), TableName(schema, name))
        return self._keys[table]

    def _asked(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection
