"""Table metadata from the catalog: columns, types and privileges, and the column types of tables to create."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import psycopg
from psycopg import errors

from conduit_dagster.connectors.postgres.connection import Connection, Session, value_of
from conduit_dagster.connectors.postgres.settings import (
    DatabaseServer,
    PostgresDestinationSettings,
    TableName,
    typed_name,
)
from conduit_dagster.connectors.postgres.sqlstates import CellError, DatabaseErrors
from conduit_dagster.whole_numbers import FloatBits

Kind = Literal["integer", "number", "boolean", "json", "array", "bytea", "hstore", "time", "text"]

_QUERY = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname),
           coalesce(b.typcategory, t.typcategory),
           (a.attnotnull OR t.typnotnull) AND NOT EXISTS (
               SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgtype & 7 = 7 AND NOT g.tgisinternal),
           a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
           a.attgenerated <> ''
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_type b ON b.oid = t.typbasetype
    WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'f') AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("json", "jsonb"), "json"),
    **dict.fromkeys(("date", "time", "timetz", "timestamp", "timestamptz", "interval"), "time"),
    "bool": "boolean",
    "bytea": "bytea",
    "hstore": "hstore",
}
_BITS = {"int2": 15, "int4": 31, "int8": 63}
_FLOAT_BITS: dict[str, FloatBits] = {"float4": 24, "float8": 53}
_LIFETIME = 60.0
"""Seconds for which a process caches a table. A field without a column triggers a refresh at once."""


class Column(NamedTuple):
    """The properties of a column that rendering a value needs."""

    name: str
    type: str
    kind: Kind
    bits: int = 0
    """Bits of an integer without its sign; for an array, those of its elements."""
    float_bits: FloatBits | None = None
    """Bits of the digits of a float; for an array, those of its elements."""
    required: bool = False
    """NULL is rejected, and no trigger could fill in a value."""
    has_default: bool = False
    generated: bool = False
    """A generated column, which can't be written."""
    known: bool = True
    """False if the table does not exist yet, so that the type is still undecided."""
    element: Kind = "text"
    """Kind of the elements of an array."""


_WRITABLE = """
    SELECT has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'INSERT')
        AND NOT row_security_active(c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_CREATABLE = "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s"


class Table(NamedTuple):
    """A table and its columns, in the order of the table; ``exists`` is False for one that is to be created."""

    name: TableName
    columns: dict[str, Column]
    exists: bool = True


def read_table(connection: Connection, name: TableName) -> Table | None:
    """Return the table; None if it does not exist or is a relation that can't be written."""
    rows = connection.execute(_QUERY, (name.schema, name.name)).fetchall()
    columns = {column.name: column for column in map(_column, rows)}
    return Table(name, columns) if columns else None


def _column(row: tuple[Any, ...]) -> Column:
    name, shown, base, category, required, has_default, generated = row
    is_array = category == "A"
    # the name of an array type is an underscore and the name of its element type
    single = base[1:] if is_array else base
    of_one: Kind = _KINDS.get(single, "text")
    kind: Kind = "array" if is_array else of_one
    made = Column(name, shown, kind, _BITS.get(single, 0), _FLOAT_BITS.get(single), required and not has_default)
    return made._replace(has_default=has_default, generated=generated, element=of_one)


class TableCache:
    """Per-process cache of tables by database and name: one short query a minute instead of one per task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, TableName], tuple[float, Table]] = {}

    def get(self, server: str, name: TableName, look: Callable[[], Table | None], fresh: bool = False) -> Table | None:
        """Return the table. Calls ``look`` to read it if it is not cached, is too old or must be ``fresh``. Missing
        tables are not cached."""
        with self._lock:
            at, table = self._known.get((server, name), (0.0, None))
        if table is not None and not fresh and time.monotonic() - at < _LIFETIME:
            return table
        found = look()
        with self._lock:
            if found is None:
                self._known.pop((server, name), None)
            else:
                self._known[server, name] = time.monotonic(), found
        return found


TABLES = TableCache()
"""Cache of this process."""


def check_columns(table: Table, settings: PostgresDestinationSettings, verdicts: DatabaseErrors) -> None:
    """Raise ``FatalError`` if a column named in the settings is missing."""
    named = [*settings.key_columns, *settings.renames.values()]
    if settings.raw_column:
        named.append(settings.raw_column)
    if settings.unmapped == "json":
        named.append(settings.unmapped_column)
    for name in named:
        if name not in table.columns:
            fix = f"add the column, or correct the setting; the columns are {', '.join(table.columns)}"
            raise verdicts.fatal(f"the table {table.name} has no column {name}", "postgres.no_column", fix)


def check_rights(connection: Connection, table: Table, verdicts: DatabaseErrors) -> None:
    """Raise ``FatalError`` without the privilege to insert rows. A missing UPDATE privilege fails only at the first
    update."""
    name, its = table.name.quoted.as_string(connection), table.name.typed
    row = connection.execute("SELECT has_any_column_privilege(%s, 'INSERT'), current_user", (name,)).fetchone()
    if row is not None and not row[0]:
        fix = f"as the table's owner: GRANT SELECT, INSERT, UPDATE, DELETE ON {its} TO {typed_name(row[1])}"
        raise verdicts.fatal(f"no right to insert into {table.name}", "postgres.no_privilege", fix)


_IS_FOREIGN = """
    WITH RECURSIVE parts (id) AS (
        SELECT to_regclass(%s)::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN parts p ON i.inhparent = p.id)
    SELECT EXISTS (SELECT FROM parts p JOIN pg_class c ON c.oid = p.id WHERE c.relkind = 'f')
"""


def check_server(connection: Connection, table: Table, verdicts: DatabaseErrors) -> None:
    """Raise ``FatalError`` for a table whose rows, or those of a partition, are on another server."""
    if value_of(connection, _IS_FOREIGN, (table.name.quoted.as_string(connection),)):
        message = f"{table.name} is a foreign table or has one: its server commits rows before the delivery's hash"
        fix = "write to that server itself: name it in the setting url; or set delivery.strategy to at-least-once"
        raise verdicts.fatal(message, "postgres.foreign_table", fix)


class TableLookup:
    """Lookup of the tables of one database, cached by the process for a minute."""

    def __init__(
        self, settings: PostgresDestinationSettings, server: DatabaseServer, verdicts: DatabaseErrors, session: Session
    ) -> None:
        self._settings = settings
        self._server = server
        self._verdicts = verdicts
        self._session = session
        self._nacks = settings.nacks_missing_tables

    def close(self) -> None:
        """Close the connection, if a table had to be looked up."""
        self._session.close()

    def get(self, name: TableName, fresh: bool = False) -> Table:
        """Return the table. Raises ``FatalError`` if it is missing and must not be created; with ``on-missing-table:
        nack``, ``CellError`` instead."""
        found = TABLES.get(f"{self._server.user}@{self._server.place}", name, lambda: self._read(name), fresh)
        if found is not None:
            return found
        if self._settings.create_table == "never":
            if self._nacks:
                raise CellError("no_table", f"there is no table {name}: create it, or set create-table: auto")
            raise self._verdicts.missing(str(name))
        return Table(name, {}, exists=False)

    def _read(self, name: TableName) -> Table | None:
        with self._session.connection() as connection:
            try:
                found = read_table(connection, name)
                if self._nacks:
                    self._require_rights(connection, name, found)
                return found
            except errors.UntranslatableCharacter as error:
                if not self._nacks:
                    raise self._verdicts.missing(str(name)) from None
                message = f"no table can be called {name}: {error.diag.message_primary}"
                raise CellError("table_name", message) from None
            except psycopg.Error as error:
                raise self._verdicts.verdict(error) from None

    def _require_rights(self, connection: Connection, name: TableName, found: Table | None) -> None:
        """Raise ``CellError`` for a table that can't be written or created: it nacks only the records that name the
        table.
        """
        if found is not None:
            row = connection.execute(_WRITABLE, (name.schema, name.name)).fetchone()
            if row is not None and not row[0]:
                raise CellError("no_privilege", f"no right to insert into {name}, or it has row-level security")
        elif self._settings.create_table == "auto":
            row = connection.execute(_CREATABLE, (name.schema,)).fetchone()
            if row is None:
                raise CellError("no_schema", f"there is no schema {name.schema} for the table {name}: CREATE SCHEMA")
            if not row[0]:
                raise CellError("no_privilege", f"no right to create the table {name}: GRANT CREATE ON its schema")
