"""The driver's connection: opened on demand, kept between deliveries, and reopened after a loss."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow
from typing_extensions import override

from conduit_dagster.connectors.postgres.settings import DatabaseSettings, TableName, conninfo
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.sqlstates import DatabaseErrors, NotReplicatedError
from conduit_dagster.state.timed_connection import is_cancelled_wait

Connection = psycopg.Connection[TupleRow]
_IDLE = 1.0
"""Idle seconds after which a kept connection is tested before use."""
_KEEPALIVES = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
# without one, a client key with a password asks for it at the terminal, and waits for an answer without end
_NO_PROMPT = {"sslpassword": "none"}

# statement-timeout is the limit: those of a role would end a copy or a delivery that is under way, at each attempt
_UNLIMITED = ("idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout")
NO_LIMITS = f"""
    SELECT set_config(name, '0', false) FROM unnest('{{{",".join(_UNLIMITED)}}}'::text[]) AS name
    WHERE current_setting(name, true) IS NOT NULL
"""
# what is committed survives a crash of the server; 12.34 would be 1234 as money of a locale with a decimal comma, and
# null in an array a text; a wait for standbys that was cancelled is told by a warning alone
_OWN_SETTINGS = """
    SELECT set_config(name, value, %s) FROM (
        VALUES ('statement_timeout', %s), ('lock_timeout', %s), ('lc_monetary', 'C'), ('array_nulls', 'on'),
            ('xmloption', 'content'), ('client_min_messages', 'warning'),
            ('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'))
        UNION ALL SELECT name, '0' FROM unnest(%s::text[]) AS name
    ) known (name, value) WHERE current_setting(name, true) IS NOT NULL
"""


class _WithoutValues(logging.Filter):
    """Reduces errors that psycopg logs to their classes: their texts hold values of rows, whatever ``redact`` says."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(type(one).__name__ if isinstance(one, psycopg.Error) else one for one in record.args)
        return True


logging.getLogger("psycopg").addFilter(_WithoutValues())

ConnectionErrors = DatabaseErrors | SourceErrors
"""Translation of database errors, of a destination or of a source."""

APPLICATION = "conduit:"
"""Prefix of ``application_name`` on every connection of this project."""


def application(full_id: str) -> str:
    """Return the ``application_name`` of one connector's connections, without the epoch."""
    return f"{APPLICATION}{hashlib.sha256(full_id.encode()).hexdigest()[:12]}"


def parameters(settings: DatabaseSettings, name: str) -> dict[str, str]:
    """Return the libpq parameters of a connection with this ``application_name``."""
    timeout = max(2, round(settings.connect_timeout))
    own = {"application_name": name, "client_encoding": "UTF8", "connect_timeout": str(timeout)}
    given = conninfo(settings.url)
    # a service's file may hold the password
    unasked = {} if "service" in given or "PGSERVICE" in os.environ else _NO_PROMPT
    return {**_KEEPALIVES, **unasked, "tcp_user_timeout": "60000", **given, **own}


def connect(settings: DatabaseSettings, verdicts: ConnectionErrors, name: str) -> Connection:
    """Connect in autocommit mode. Raises a ``ConduitError`` without secrets."""
    try:
        # psycopg's own prepared statements break behind a pooler
        found = make_conninfo(**parameters(settings, name))
        connection = psycopg.connect(found, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        # "from None": a traceback would show libpq's unredacted text
        raise verdicts.connecting(error) from None
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    try:
        _prepare(connection, settings)
    except psycopg.Error as error:
        connection.close()
        raise verdicts.verdict(error) from None
    return connection


def _prepare(connection: Connection, settings: DatabaseSettings, within_transaction: bool = False) -> None:
    limits = [f"{round(seconds * 1000)}ms" for seconds in (settings.statement_timeout, settings.lock_timeout)]
    connection.execute(_OWN_SETTINGS, (within_transaction, *limits, [*_UNLIMITED]))


@contextmanager
def transaction(connection: Connection, settings: DatabaseSettings, force_rollback: bool = False) -> Generator[None]:
    """Open a transaction with the settings of :func:`connect`: behind a pooler, such as PgBouncer with ``pool_mode =
    transaction``, it may run in another session than the one that was prepared.

    Raises ``NotReplicatedError`` if it is committed, but not known to be at the synchronous standbys.
    """
    cancelled: list[str] = []

    def notice(found: psycopg.errors.Diagnostic) -> None:
        if is_cancelled_wait(found):
            cancelled.append(found.message_primary or "")

    connection.add_notice_handler(notice)
    try:
        with connection.transaction(force_rollback=force_rollback):
            _prepare(connection, settings, within_transaction=True)
            yield
    finally:
        connection.remove_notice_handler(notice)
    if cancelled:
        raise NotReplicatedError(cancelled[0])


def exists(connection: Connection, table: TableName) -> bool:
    """Return whether there is a table of this name."""
    return value_of(connection, "SELECT to_regclass(%s)", (table.quoted.as_string(connection),)) is not None


def value_of(connection: Connection, query: LiteralString | sql.Composed, values: Sequence[object] = ()) -> Any:
    """Return the first column of a query's first row; None if there is no row. Raises ``psycopg.Error``."""
    row = connection.execute(query, values or None).fetchone()
    return None if row is None else row[0]


class Session:
    """One connection of a connector, used by one thread at a time."""

    def __init__(self, settings: DatabaseSettings, verdicts: ConnectionErrors, name: str) -> None:
        self._settings = settings
        self._verdicts = verdicts
        self._name = name
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._used = 0.0
        self.epoch = 0

    @contextmanager
    def connection(self) -> Generator[Connection]:
        """Yield the connection for exclusive use. If it is lost meanwhile, the next use reconnects."""
        with self._lock:
            connection = self._alive()
            try:
                yield connection
            finally:
                self._used = time.monotonic()
                if connection.broken:
                    self.close()

    def _alive(self) -> Connection:
        if self._connection is not None and not self._answers(self._connection):
            self.close()
        if self._connection is None:
            made = connect(self._settings, self._verdicts, f"{self._name}:{self.epoch}")
            weakref.finalize(self, made.close)
            self._connection = made
        return self._connection

    def _answers(self, connection: Connection) -> bool:
        if connection.closed:
            return False
        if time.monotonic() - self._used < _IDLE:
            return True
        try:
            connection.execute("")
        except psycopg.Error:
            return False
        return True

    def become(self, epoch: int) -> None:
        """Close the connection; later ones carry this epoch in their ``application_name``."""
        with self._lock:
            self.epoch = epoch
            self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_PATIENCE = 30.0
"""Seconds to wait for terminated backends to exit."""
_PAUSE = 0.02

# the user that connected, and not the role that it has: the view shows that one, and it may end its own sessions
_AS_USER = "SET LOCAL ROLE NONE"
_OTHERS = """
    SELECT pid, application_name FROM pg_stat_activity
    WHERE starts_with(application_name, %s) AND usename = session_user AND pid <> pg_backend_pid()
      AND datname = current_database()
"""


def end_older(connection: Connection, name: str, epoch: int, verdicts: DatabaseErrors) -> None:
    """Terminate all connections named ``name:EPOCH`` with a lower epoch, and wait until they are gone.

    Only connections of the same database user can be terminated; locks held by others are waited for, up to
    ``lock-timeout``.
    """
    deadline = time.monotonic() + _PATIENCE
    while older := _ended(connection, name, epoch):
        if time.monotonic() > deadline:
            fix = "end them on the server: SELECT pg_terminate_backend(pid); then run again"
            pids = ", ".join(map(str, older))
            raise verdicts.outage(f"connections of an older run do not end: {pids}", "postgres.fence", fix)
        time.sleep(_PAUSE)


def _ended(connection: Connection, name: str, epoch: int) -> list[int]:
    """Terminate the older connections that are there, and return their process ids."""
    # one transaction for each look: the view does not change within one
    with connection.transaction():
        connection.execute(_AS_USER)
        rows = connection.execute(_OTHERS, (f"{name}:",)).fetchall()
        older = [int(str(pid)) for pid, called in rows if _epoch(str(called)) < epoch]
        for pid in older:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
    return older


def _epoch(name: str) -> int:
    number = name.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
