"""The driver's connection: opened when it is needed, kept between deliveries, made anew when it was lost."""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from conduit_dagster.connectors.postgres.errors import Verdicts
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings, conninfo

Connection = psycopg.Connection[TupleRow]
_IDLE = 1.0
"""Seconds after which a kept connection is tried before it is used."""
_KEEPALIVES = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
# whoever turned it off for speed did not mean to lose what was reported as delivered
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"


def application(full_id: str) -> str:
    """How connections of one destination of one pipeline are called on the server, but for their epoch."""
    return f"conduit:{hashlib.sha256(full_id.encode()).hexdigest()[:12]}"


def connect(settings: PostgresDestinationSettings, verdicts: Verdicts, name: str) -> Connection:
    """A connection in autocommit mode. Raises a ``ConduitError`` without secrets."""
    parameters: dict[str, str] = {**_KEEPALIVES, "tcp_user_timeout": "60000", **conninfo(settings.url)}
    # psycopg's own preparing of statements breaks behind a pooler
    timeout = max(2, round(settings.connect_timeout))
    own = {"application_name": name, "client_encoding": "UTF8", "connect_timeout": str(timeout)}
    try:
        connection = psycopg.connect(make_conninfo(**{**parameters, **own}), autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        # "from None": a traceback would show libpq's text as it is
        raise verdicts.connecting(error) from None
    try:
        _prepare(connection, settings)
    except psycopg.Error as error:
        connection.close()
        raise verdicts.verdict(error) from None
    return connection


def _prepare(connection: Connection, settings: PostgresDestinationSettings) -> None:
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    for name, seconds in (("statement_timeout", settings.statement_timeout), ("lock_timeout", settings.lock_timeout)):
        connection.execute("SELECT set_config(%s, %s, false)", (name, f"{round(seconds * 1000)}ms"))
    connection.execute(_DURABLE)


class Session:
    """One connection for one destination; one thread at a time has it."""

    def __init__(self, settings: PostgresDestinationSettings, verdicts: Verdicts, name: str) -> None:
        self._settings = settings
        self._verdicts = verdicts
        self._name = name
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._used = 0.0
        self.epoch = 0

    @contextmanager
    def connection(self) -> Generator[Connection]:
        """The connection, alone. An error that ends it is not repaired here; the next use connects anew."""
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
        """Later connections say this epoch."""
        with self._lock:
            self.epoch = epoch
            self.close()

    def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_PATIENCE = 30.0
"""Seconds that a backend may take to end."""
_PAUSE = 0.02

_OTHERS = """
    SELECT pid, application_name FROM pg_stat_activity
    WHERE starts_with(application_name, %s) AND usename = current_user AND pid <> pg_backend_pid()
      AND datname = current_database()
"""


def end_older(connection: Connection, name: str, epoch: int, verdicts: Verdicts) -> None:
    """Ends every connection called ``name:EPOCH`` with a lower epoch, and waits until they are gone.

    Only those of the same database user can be ended; anybody else's lock is waited for, up to lock-timeout.
    """
    deadline = time.monotonic() + _PATIENCE
    while older := _older(connection, name, epoch):
        for pid in older:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        if time.monotonic() > deadline:
            fix = "end them on the server: SELECT pg_terminate_backend(pid); then run again"
            pids = ", ".join(map(str, older))
            raise verdicts.outage(f"connections of an older run do not end: {pids}", "postgres.fence", fix)
        time.sleep(_PAUSE)


def _older(connection: psycopg.Connection[tuple[object, ...]], name: str, epoch: int) -> list[int]:
    rows = connection.execute(_OTHERS, (f"{name}:",)).fetchall()
    return [int(str(pid)) for pid, called in rows if _epoch(str(called)) < epoch]


def _epoch(name: str) -> int:
    number = name.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
