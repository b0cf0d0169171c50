"""What a reader of the stream asks the server for: types, keys, and the order of a table's keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.partitions import is_sent_in_part
from conduit_dagster.connectors.postgres.pgoutput import Columns, Relation
from conduit_dagster.connectors.postgres.row_values import Decode, OwnType, decoder_of
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import RowKey
from conduit_dagster.connectors.postgres.source_tables import columns_by_oid, key_by_oid, kind_of, literals, names_then

_TYPE = """
    SELECT t.typtype, t.typname, t.typbasetype,
           CASE WHEN t.typcategory = 'A' AND t.typdelim = ',' THEN t.typelem ELSE 0 END
    FROM pg_type t WHERE t.oid = %s
"""


class _Order(NamedTuple):
    places: list[int]
    """Index in the stream's key of each column of the table's index, in index order."""
    types: list[str]
    """SQL types, with the collations that order them."""


class StreamCatalog:
    """Cached catalog queries. Connects at the first query; most tables need none."""

    def __init__(self, connect: Callable[[], Connection], errors: SourceErrors) -> None:
        self._connect = connect
        self._errors = errors
        self._relations: dict[str, Relation] = {}
        self._orders: dict[str, _Order] = {}
        self._connection: Connection | None = None
        self._types: dict[int, OwnType | None] = {}
        self._ordered: dict[tuple[str, tuple[str, ...], tuple[str, ...]], bool] = {}

    def close(self) -> None:
        """Close the connection, if there is one."""
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

    def keys(self, oid: int, sent: Columns) -> list[str]:
        """Return the key columns of a table by their names in a change; empty if it was dropped, or has lost columns
        since of which one may be in the key."""
        live = columns_by_oid(self._asked(), oid)
        then = names_then(sent, live)
        key = [column.name for column in key_by_oid(self._asked(), oid)]
        found = [then[name] for name in key if name in then]
        # without a column that is gone, the key would be that of several rows
        is_whole = len(found) == len(key) or {name for name, _ in sent} <= {name for name, _ in live}
        return found if is_whole else []

    def is_sent_in_part(self, oid: int) -> bool:
        """Return whether old rows of a table may lack columns, although its replica identity is full."""
        return is_sent_in_part(self._asked(), oid)

    def has_table(self, table: TableName) -> bool:
        """Return whether there is a table of this name now."""
        return kind_of(self._asked(), table) != "missing"

    def describe(self, relation: Relation) -> None:
        """Store the relation of a table. Keys of the stream are in the order of its columns."""
        self._relations[relation.name] = relation
        self._orders.pop(relation.name, None)
        self._ordered.clear()

    def not_behind(self, table: str, key: RowKey, bound: RowKey) -> bool:
        """Return whether a key of the stream is less than or equal to one of a copy, in the order of the table's
        key. Raises ``FatalError`` for one that can't be compared, being another key or having a label that is gone."""
        places, types = self._order(table)
        values = tuple(key[place] for place in places)
        asked = (table, values, tuple(bound))
        if asked not in self._ordered:
            self._ordered[asked] = self._is_not_behind(asked, types)
        return self._ordered[asked]

    def _is_not_behind(self, asked: tuple[str, tuple[str, ...], tuple[str, ...]], types: list[str]) -> bool:
        table, values, bound = asked
        if len(values) != len(bound):
            raise self._errors.order_changed(table)
        statement = sql.SQL("SELECT ({}) <= ({})").format(literals(values, types), literals(bound, types))
        try:
            return bool(value_of(self._asked(), statement))
        except psycopg.DataError:
            raise self._errors.order_changed(table) from None

    def _order(self, table: str) -> _Order:
        """Return the order of a table's copy: that of its index, which has its own column order and collations."""
        if table not in self._orders:
            relation = self._relations[table]
            live = key_by_oid(self._asked(), relation.oid)
            told = {relation.names[place]: self._type_name(relation.types[place]) for place in relation.key}
            if len(live) == len(told) and all(column.has_type(told.get(column.name, "")) for column in live):
                places = [relation.key_names.index(column.name) for column in live]
                self._orders[table] = _Order(places, [column.compared_as for column in live])
            else:
                # the table was dropped, or has another key or one of another type: use the order of the stream
                self._orders[table] = _Order(list(range(len(told))), list(told.values()))
        return self._orders[table]

    def _type_name(self, oid: int) -> str:
        return str(value_of(self._asked(), "SELECT format_type(%s::int8::oid, -1)", (oid,)))

    def _asked(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection
