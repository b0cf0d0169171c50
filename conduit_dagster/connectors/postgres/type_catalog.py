"""Catalog queries of a task about its tables: user-defined types, and the order of keys."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from psycopg import sql

from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.pgoutput import Relation
from conduit_dagster.connectors.postgres.row_values import Decode, OwnType, decoder_of
from conduit_dagster.connectors.postgres.seen_changes import RowKey
from conduit_dagster.connectors.postgres.source_tables import key_by_oid, literals

_TYPE = """
    SELECT t.typtype, t.typname, t.typbasetype, CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END
    FROM pg_type t WHERE t.oid = %s
"""


class _Order(NamedTuple):
    places: list[int]
    """Index in the stream's key of each column of the table's index, in index order."""
    types: list[str]
    """SQL types, with the collations that order them."""


class TypeCatalog:
    """Cached catalog queries. Connects at the first query; most tables need none."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._relations: dict[str, Relation] = {}
        self._orders: dict[str, _Order] = {}
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
        """Return the key columns of a table; empty if it was dropped."""
        return [column.name for column in key_by_oid(self._asked(), oid)]

    def describe(self, relation: Relation) -> None:
        """Store the relation of a table. Keys of the stream are in the order of its columns."""
        self._relations[relation.name] = relation
        self._orders.pop(relation.name, None)
        self._ordered.clear()

    def not_behind(self, table: str, key: RowKey, bound: RowKey) -> bool:
        """Return whether a key of the stream is less than or equal to one of a copy, in the order of the table's
        key."""
        places, types = self._order(table)
        values = tuple(key[place] for place in places)
        asked = (table, values, tuple(bound))
        if asked not in self._ordered:
            statement = sql.SQL("SELECT ({}) <= ({})").format(literals(values, types), literals(tuple(bound), types))
            self._ordered[asked] = bool(value_of(self._asked(), statement))
        return self._ordered[asked]

    def _order(self, table: str) -> _Order:
        """Return the order of a table's copy: that of its index, which has its own column order and collations."""
        if table not in self._orders:
            relation = self._relations[table]
            live = key_by_oid(self._asked(), relation.oid)
            if {column.name for column in live} == set(relation.key_names):
                places = [relation.key_names.index(column.name) for column in live]
                self._orders[table] = _Order(places, [column.type for column in live])
            else:
                # the table was dropped or has another key: use the order of the stream
                types = [self._type_name(relation.types[place]) for place in relation.key]
                self._orders[table] = _Order(list(range(len(types))), types)
        return self._orders[table]

    def _type_name(self, oid: int) -> str:
        return str(value_of(self._asked(), "SELECT format_type(%s::int8::oid, -1)", (oid,)))

    def _asked(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection
