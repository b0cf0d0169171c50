"""Access to the state store's database: SQLite or PostgreSQL."""

from __future__ import annotations

import os
import shlex
import sqlite3
from typing import Any, Literal
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from conduit_dagster.config.project_settings import POSTGRES_STORES, SQLITE_STORES
from conduit_dagster.extras import not_installed
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.secret_values import hide
from conduit_dagster.state import migrations, tables
from conduit_dagster.state.sqlite_store import (
    ACCEPT,
    READS,
    configure_sqlite,
    create_file,
    disk_trouble,
    replaced,
    sqlite_file,
)

# SQLITE_BUSY, LOCKED, NOMEM, READONLY, IOERR, FULL, CANTOPEN and PROTOCOL, as primary result codes
_SQLITE = frozenset({5, 6, 7, 8, 10, 13, 14, 15})
_READ_ONLY = "25006"  # after a failover the address may still lead to a standby
_DAMAGED = frozenset({11, 26})  # SQLITE_CORRUPT and NOTADB
_NO_TABLE = "42P01"
_POOLER = "unsupported startup parameter"  # PgBouncer's words; the driver tells no code of a connection that fails
_RIGHTS = (
    "give the user all rights on its tables and the right to create some, or name another store in"
    " CONDUIT_STATE_URL or state.url"
)
_REACH = "check that the store runs and can be reached and written, and CONDUIT_STATE_URL or state.url in conduit.yaml"
_LOCKED = frozenset({5, 6})  # SQLITE_BUSY and LOCKED
_UNLOCK = "end what keeps it locked, such as an SQL shell or a backup: fuser %s lists the processes that have it open"
_PASS_ON = (
    "name the server itself in CONDUIT_STATE_URL or state.url, or let PgBouncer take the parameter:"
    " ignore_startup_parameters = options"
)


def is_outage(error: BaseException) -> bool:
    """Return whether the store was unreachable, busy or out of resources, so that a retry may succeed.

    An error in a statement or in its data is not an outage.
    """
    if isinstance(error, NoFreeConnection):
        return True  # all connections of this process wait for a store that does not answer
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE
    return isinstance(error, OperationalError | InterfaceError) or getattr(error.orig, "sqlstate", "") == _READ_ONLY


def place_of(engine: sa.Engine) -> str:
    """Return the store's URL for display: without its password, and without options, which may hold one."""
    return engine.url.set(drivername=engine.dialect.name, query={}).render_as_string(hide_password=True)


def cause_of(error: BaseException) -> str:
    """Return the database driver's message on one line, without the statement and its values."""
    if isinstance(error, NoFreeConnection):
        return "all connections of this process are in use, and wait for its answers"
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return hide(" ".join(str(said).split()))


def loss_of(error: BaseException) -> Literal["damaged", "tables"] | None:
    """Return the loss that a database error shows: the file is ``damaged``, or the ``tables`` are missing; or None."""
    found = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(found, sqlite3.Error):
        if getattr(found, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            return "damaged"
        return "tables" if "no such table: conduit_" in str(found) else None
    is_ours = getattr(found, "sqlstate", "") == _NO_TABLE and "conduit_" in str(found)
    return "tables" if is_ours else None


def unreachable(engine: sa.Engine | None, error: BaseException, doing: str) -> ConduitError:
    """Return the error for the user. ``doing``: what failed; ``engine``: the store, by default that of the error.

    Fatal for a lost store (``state.damaged``, ``state.replaced``) and for a statement that it refuses, which it would
    refuse again (``state.unusable``); otherwise ``state.unreachable``.
    """
    engine = engine or _engines.get(error)
    loss, place = loss_of(error), None if engine is None else place_of(engine)
    if loss == "damaged":
        return _damaged(place, error)
    if loss == "tables":
        return (engine and _migrated(engine)) or replaced(place or "", "lost its tables")
    if _is_refused(error):
        return _unusable(place, error)
    if _POOLER in cause_of(error):
        return _unusable(place, error, _PASS_ON)
    trouble = None if engine is None else disk_trouble(engine.url)
    return TransientError(
        f"{doing}: {cause_of(error)}" + (f" ({trouble.what})" if trouble else ""),
        code="state.unreachable",
        place=place,
        fix=f"{trouble.fix if trouble else _unlock(engine, error) or _standby(error) or _REACH}; nothing was lost,"
        " run again",
    )


def _standby(error: BaseException) -> str | None:
    # by its name: the class imports the driver, which SQLite does not need
    is_lacking = type(getattr(error, "orig", None)).__name__ == "LackingStandbyError"
    return "bring the standby back, or take it out of synchronous_standby_names" if is_lacking else None


def _unlock(engine: sa.Engine | None, error: BaseException) -> str | None:
    file = None if engine is None else sqlite_file(engine.url)
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    return None if file is None or code & 0xFF not in _LOCKED else _UNLOCK % shlex.quote(str(file))


_engines: WeakKeyDictionary[BaseException, sa.Engine] = WeakKeyDictionary()
"""The store of each database error: what reports one does not always have the engine."""


def _note_engine(context: sa.ExceptionContext) -> None:
    if context.sqlalchemy_exception is not None and context.engine is not None:
        _engines[context.sqlalchemy_exception] = context.engine


def _migrated(engine: sa.Engine) -> FatalError | None:
    """Return the error for tables that a newer program has renamed or removed; None otherwise."""
    try:
        with reading(engine) as connection:
            migrations.require_not_newer(connection, place_of(engine))
    except FatalError as error:
        return error
    except SQLAlchemyError:
        pass
    return None


def _is_refused(error: BaseException) -> bool:
    if not isinstance(error, DBAPIError) or isinstance(error, InternalError):
        return False
    code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorcode", None)
    return code is not None and not is_outage(error)


def _unusable(place: str | None, error: BaseException, fix: str = _RIGHTS) -> FatalError:
    return FatalError(f"the state store can't be used: {cause_of(error)}", code="state.unusable", place=place, fix=fix)


def _damaged(place: str | None, error: BaseException) -> FatalError:
    return FatalError(
        f"the state store's file is damaged, or not an SQLite database: {cause_of(error)}",
        code="state.damaged",
        place=place,
        fix="stop all runs and restore the file from a backup, without its old -wal and -shm files;"
        f" without a backup move it away, then {ACCEPT}",
    )


class NoStore(Exception):  # noqa: N818  # not an error by itself
    """Raised for a database without the store's tables that are not to be created."""


_SETTING = "CONDUIT_STATE_URL or state.url in conduit.yaml"
_CONNECT: dict[str, Any] = {
    "connect_timeout": 10,
    "application_name": "conduit-dagster",
    # whatever the database's encoding, or a role's setting: with SQL_ASCII the driver would return bytes
    "client_encoding": "UTF8",
    # behind a pooler the name of a prepared statement may be that of another client's
    "prepare_threshold": None,
    # a peer that vanished without closing the connection is detected after 10 to 25 s, on both sides
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    # a frozen owner inside a transaction holds the pipeline's row: no process waits for it longer than this
    "options": "-c lock_timeout=10s -c idle_in_transaction_session_timeout=10s"
    " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3",
}


def open_database(url: str, create: bool = True, private: bool = True) -> sa.Engine:
    """Return a connected engine; create the tables, or migrate them to the version of this program.

    ``private``: a new file of SQLite is for its user only; otherwise the umask applies.

    A committed transaction survives a power failure. Raises ``TransientError`` (``state.unreachable``), ``FatalError``
    (``state.url``, ``state.not_installed``, ``state.version``, ``state.unusable``, ``state.damaged``), and
    :class:`NoStore` if there are no tables and ``create`` is False; then nothing was changed.
    """
    engine = make_engine(url)
    try:
        _make_file(engine, create, private)
        _prepare(engine, create)
    except (ConduitError, NoStore):
        engine.dispose()
        raise
    except (SQLAlchemyError, OSError) as error:
        engine.dispose()
        raise unreachable(engine, error, "the state store can't be opened") from error
    return engine


def try_to_create(engine: sa.Engine) -> None:
    """Create the tables of a PostgreSQL store that has none, and undo it: what a first run needs is there.

    Raises like :func:`open_database`. SQLite's file would remain.
    """
    try:
        with engine.connect() as connection:
            if migrations.version_of(connection) == 0:
                migrations.migrate(connection, place_of(engine))
            connection.rollback()
    except SQLAlchemyError as error:
        raise unreachable(engine, error, "the state store can't be opened") from error


def make_engine(url: str) -> sa.Engine:
    """Return an engine for the store at ``url``, not connected yet; its tables may be missing or old.

    Raises ``FatalError``: ``state.url``, or ``state.not_installed`` if PostgreSQL's driver is missing.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        engine = sa.create_engine(parsed)
        event.listen(engine, "handle_error", _note_engine)
        configure_sqlite(engine)
        return engine
    ours = {name: value for name, value in _CONNECT.items() if name not in parsed.query}
    if not {"service", "sslpassword"} & parsed.query.keys() and "PGSERVICE" not in os.environ:
        # without one, a client key with a password asks for it at the terminal, and waits for an answer without end
        ours["sslpassword"] = "none"
    if isinstance(given := parsed.query.get("options"), str):  # such as search_path; the last of equal ones counts
        ours["options"] = f"{_CONNECT['options']} {given}"
    try:
        # READ COMMITTED: a guard that waited for the pipeline's row sees the row's current epoch
        engine = sa.create_engine(parsed, connect_args=ours, pool_pre_ping=True, isolation_level="READ COMMITTED")
    except ImportError as error:
        what = "a state store in PostgreSQL"
        raise not_installed(what, "postgres", error, code="state.not_installed", place=_SETTING) from None
    event.listen(engine, "do_connect", _connect_timed)
    event.listen(engine, "handle_error", _note_engine)
    return engine


def _connect_timed(_dialect: Any, _record: Any, args: list[Any], settings: dict[str, Any]) -> Any:
    from conduit_dagster.state.timed_connection import TimedConnection  # imports the driver, which SQLite does not need

    connection = TimedConnection.connect_durably(*args, **settings)
    # whatever the role's default: a connection that has read once would write anyway, and a new one would not
    connection.read_only = False
    return connection


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise _bad_url("it is no database URL") from None  # the cause may quote a part of the password
    if parsed.drivername in POSTGRES_STORES:
        parsed = parsed.set(drivername="postgresql+psycopg")
    elif parsed.drivername not in SQLITE_STORES:
        raise _bad_url(f"a store of kind {parsed.drivername} is not known")
    if "@" in (parsed.host or ""):
        raise _bad_url("an @ in its password must be written as %40")
    return parsed


def _bad_url(why: str) -> FatalError:
    return FatalError(
        f"the state store's URL can't be used: {why}",
        code="state.url",
        place=_SETTING,
        fix="write sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, special characters percent-encoded",
    )


def _make_file(engine: sa.Engine, create: bool, private: bool) -> None:
    file = sqlite_file(engine.url)
    if file is None:
        return
    if create:
        create_file(file, private)
    elif not file.is_file() or file.stat().st_size == 0:
        raise NoStore


def _prepare(engine: sa.Engine, create: bool) -> None:
    with reading(engine) as connection:  # an up-to-date store is opened without waiting for a writer
        found = migrations.version_of(connection)
        if found == tables.VERSION:
            return
        if found == 0 and not create:
            raise NoStore
    try:
        with engine.begin() as connection:
            _wait_longer(connection)
            migrations.migrate(connection, place_of(engine))
    except SQLAlchemyError as error:
        if not found:
            raise
        raise _not_migrated(engine, found, error) from error


_MIGRATION_SECONDS = 3600.0


def _wait_longer(connection: sa.Connection) -> None:
    """Wait long for the answers to this transaction: an index of a large table is one statement.

    With the usual timeout each attempt would be undone after the same time, and the store never be migrated.
    """
    if connection.dialect.name == "postgresql":
        driver: Any = connection.connection.dbapi_connection
        driver.seconds = _MIGRATION_SECONDS
        connection.detach()  # closed afterwards: the next transaction has the usual timeout


_OWN = (
    "let a user who owns the store's tables run `conduit-dagster pipelines list` once, or make this user their owner;"
    " then give those who only use it all rights on its tables"
)


def _not_migrated(engine: sa.Engine, found: int, error: SQLAlchemyError) -> ConduitError:
    doing = f"the state store has version {found}, and can't be migrated to version {tables.VERSION}"
    if _is_refused(error):
        return FatalError(f"{doing}: {cause_of(error)}", code="state.unusable", place=place_of(engine), fix=_OWN)
    return unreachable(engine, error, doing)


def reading(engine: sa.Engine) -> sa.Connection:
    """Return a read-only connection with a consistent snapshot: it waits for no writer, and no writer waits for it."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(**{READS: True}).connect()
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True).connect()
