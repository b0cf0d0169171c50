"""Classification of database errors for deliveries. The SQLSTATE decides, never the text, except for failed
connections, for which libpq gives no SQLSTATE.
"""

from __future__ import annotations

import re

import psycopg
from psycopg import errors

from conduit_dagster.connectors.postgres.settings import DatabaseServer
from conduit_dagster.record import Nack
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import Rejected


class CellError(Exception):
    """Error of a record that can't become a row, with its nack."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.nack = Nack(f"postgres.{code}", message)


class BulkError(Exception):
    """The database refused the data without naming the record."""


class TableError(Exception):
    """A database error while a known table was created or written."""

    def __init__(self, table: str, cause: psycopg.Error) -> None:
        super().__init__(table)
        self.table = table
        self.cause = cause


class RowError(Exception):
    """A database error caused by a known record, identified by its place in the delivery, from 0."""

    def __init__(self, place: int, cause: psycopg.Error) -> None:
        super().__init__(place)
        self.place = place
        self.cause = cause


class NamedTableError(RowError):
    """A database error about the table that a record names, for which the record is nacked."""


NO_ROW = "P0C01"
"""SQLSTATE of our own: an update omits unchanged values, and the row that has them does not exist."""
_OWN = {NO_ROW: "unchanged_toast"}
_FATAL = {
    "42501": (
        "postgres.no_privilege",
        "as the table's owner: GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {table} TO {user}; "
        "for a new table CREATE on its schema, for updates TEMPORARY on the database",
    ),
    "42P01": ("postgres.no_table", "create the table {table}, correct the setting table, or set create-table: auto"),
    "42703": ("postgres.no_column", "add the column to {table}, or rename the field with the setting mapping"),
    "3F000": ("postgres.no_schema", "CREATE SCHEMA, or correct the setting schema"),
    "3D000": ("postgres.no_database", "CREATE DATABASE {database}, or correct the setting url"),
    "42P10": ("postgres.no_unique_index", "CREATE UNIQUE INDEX ON {table} with just the columns of the key"),
    "0A000": ("postgres.not_supported", "COPY needs a plain table without row-level security for {user}"),
    "28000": ("postgres.login", "correct the user in the setting url, or the server's pg_hba.conf"),
    "28P01": ("postgres.login", "correct the user or the password in the setting url"),
}
_TRANSIENT = {
    "55P03": ("postgres.busy", "another transaction holds the lock: raise lock-timeout, or end that one"),
    "55006": ("postgres.busy", "another session locks the table exclusively: wait for it"),
    "57014": ("postgres.timeout", "raise statement-timeout, or make steps smaller with delivery.batch-size"),
    "25006": ("postgres.read_only", "the server takes no writes: name the primary in url, or wait until it is one"),
    "53100": ("postgres.disk_full", "free some space on the database's disk; nothing was lost"),
    "53300": ("postgres.busy", "the server has no connection left: raise max_connections, or end some"),
}
_TRANSIENT_CLASSES = {
    "08": "postgres.unreachable",
    "57": "postgres.unreachable",
    "53": "postgres.busy",
    "40": "postgres.busy",
    "58": "postgres.server",
    "XX": "postgres.server",
    "25": "postgres.server",
}
_FATAL_CLASSES = frozenset({"28", "3D", "3F", "42", "55", "0A"})
_DATA_CLASSES = frozenset({"22", "23", "44", "54", "P0"})
# errors about a table named by a record: table, schema, column, privilege or support is missing; for a fixed table they
# are fatal
_NAMED = frozenset({"42P01", "3F000", "42703", "42501", "42809", "0A000"})
_LOGIN = (
    (re.compile(r"password authentication failed|no password supplied|role .* does not exist"), "28P01"),
    (re.compile(r"no pg_hba\.conf entry|is not permitted to log in"), "28000"),
    (re.compile(r"database .* does not exist"), "3D000"),
    (re.compile(r"permission denied for database"), "42501"),
)


class DatabaseErrors:
    """Translation of one destination's database errors into errors that the engine handles, without secrets."""

    def __init__(self, server: DatabaseServer, table: str) -> None:
        self._server = server
        self._table = table

    def connecting(self, error: psycopg.Error) -> ConduitError:
        """Return the error of a failed connection; an unknown cause counts as an outage."""
        text = str(error)
        for pattern, state in _LOGIN:
            if pattern.search(text):
                return self._fatal(state, f"can't connect: {_last_line(text)}")
        fix = "start the server, or correct host and port in the setting url; nothing was lost"
        return self._error(TransientError, f"can't connect: {_last_line(text)}", "postgres.unreachable", fix)

    def of_table(self, table: str) -> DatabaseErrors:
        """Return the same translation for one table."""
        return DatabaseErrors(self._server, table)

    def refused(self, error: RowError) -> Exception:
        """Return the error for ``publish`` to raise for a known record."""
        if isinstance(error, NamedTableError):
            cause = error.cause
            name = _FATAL.get(cause.sqlstate or "", (f"postgres.{state_name(cause.sqlstate or '')}", ""))[0]
            return Rejected(error.place, Nack(name, self._server.scrub(_message(cause))))
        return self.verdict(error.cause, error.place)

    def verdict(self, error: psycopg.Error, place: int | None = None) -> Exception:
        """Return the error for ``publish`` to raise; ``place`` is that of the record, if known."""
        state = error.sqlstate or ""
        if not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            fix = "is the server up? nothing was lost"
            return self._error(
                TransientError, f"the connection is gone: {_last_line(str(error))}", "postgres.unreachable", fix
            )
        text = _message(error)
        if state in _TRANSIENT or state[:2] in _TRANSIENT_CLASSES:
            code, fix = _TRANSIENT.get(state, (_TRANSIENT_CLASSES.get(state[:2], "postgres.busy"), None))
            return self._error(TransientError, text, code, fix)
        if state in _FATAL or state[:2] in _FATAL_CLASSES:
            return self._fatal(state, text)
        if state[:2] in _DATA_CLASSES and place is not None:
            return Rejected(place, Nack(f"postgres.{state_name(state)}", self._server.scrub(text)))
        return BulkError(f"{state_name(state)}: {self._server.scrub(text)}")

    def outage(self, message: str, code: str, fix: str) -> ConduitError:
        """Return a transient error for this database."""
        return self._error(TransientError, message, code, fix)

    def fatal(self, message: str, code: str, fix: str) -> ConduitError:
        """Return a fatal error for this database."""
        return self._error(FatalError, message, code, fix)

    def missing(self, table: str) -> ConduitError:
        """Return the error for a missing table."""
        code, fix = _FATAL["42P01"]
        return self._error(FatalError, f"there is no table {table}", code, fix.format(table=table))

    def _fatal(self, state: str, text: str) -> ConduitError:
        code, fix = _FATAL.get(state, (f"postgres.{state_name(state)}", None))
        server = self._server
        filled = fix and fix.format(table=self._table or "SCHEMA.TABLE", user=server.user, database=server.database)
        return self._error(FatalError, text, code, filled)

    def _error(self, kind: type[ConduitError], text: str, code: str, fix: str | None) -> ConduitError:
        place = f"{self._server.place} {self._table}".strip()
        return kind(self._server.scrub(text), code=code, place=place, fix=fix and self._server.scrub(fix))


def is_data(error: psycopg.Error) -> bool:
    """Return whether the error is about the data, and so caused by a record."""
    return (error.sqlstate or "")[:2] in _DATA_CLASSES


def is_about_table(error: psycopg.Error) -> bool:
    """Return whether the error is about the table itself: missing, without a column, or not writable."""
    return error.sqlstate in _NAMED


def copy_line(error: psycopg.Error, relation: str) -> int | None:
    """Return the line number, from 1, in the context of a COPY error, or None.

    The word "line" is localized; in all languages the number is the first one after the table's name. What follows it
    may quote the record's value, with any text in it.
    """
    opening = f"COPY {relation}"
    for line in (error.diag.context or "").splitlines():
        if line.startswith(opening) and (found := re.search(r"\d+", line[len(opening) :])):
            return int(found[0])
    return None


def state_name(state: str) -> str:
    """Return the name of an SQLSTATE, such as ``unique_violation`` for ``23505``, or the SQLSTATE itself if it has
    none."""
    if state in _OWN:
        return _OWN[state]
    try:
        name = errors.lookup(state).__name__
    except KeyError:
        return state.lower() or "error"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _message(error: psycopg.Error) -> str:
    parts = [error.diag.message_primary or _last_line(str(error)), error.diag.message_detail]
    return ": ".join(part for part in parts if part)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # libpq tries several addresses and reports each on its own line; hints come after the reason
    reasons = [line for line in lines if not line.startswith(("Is the server", "Multiple connection", "- "))]
    return (reasons or lines or ["no reason given"])[-1]
