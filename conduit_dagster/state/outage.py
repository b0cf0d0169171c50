"""What it means that the state store does not answer, and how that is told without its password."""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from conduit_dagster.recovery.errors import TransientError

# SQLITE_BUSY, LOCKED, NOMEM, READONLY, IOERR, FULL, CANTOPEN and PROTOCOL, without their extended parts
_SQLITE = frozenset({5, 6, 7, 8, 10, 13, 14, 15})
_READ_ONLY = "25006"  # after a failover the address may still lead to a standby


def is_outage(error: BaseException) -> bool:
    """Whether the store was not there, busy or out of resources: the same transaction may get through later.

    An error in a statement or in its data is none.
    """
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE
    return isinstance(error, OperationalError | InterfaceError) or getattr(error.orig, "sqlstate", "") == _READ_ONLY


def place_of(engine: sa.Engine) -> str:
    """The store's URL as it may be shown: without its password, and without options, which may hold one."""
    return engine.url.set(query={}).render_as_string(hide_password=True)


def cause_of(error: BaseException) -> str:
    """What the database's driver said, on one line; without the statement and its values."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(said).split())


def unreachable(engine: sa.Engine, error: BaseException, doing: str) -> TransientError:
    """The error that a user sees. ``doing`` says what could not be done."""
    return TransientError(
        f"{doing}: {cause_of(error)}",
        code="state.unreachable",
        place=place_of(engine),
        fix="check that the store runs and can be reached and written, and CONDUIT_STATE_URL or state.url in"
        " conduit.yaml; nothing was lost, run again",
    )
