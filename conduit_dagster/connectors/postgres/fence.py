"""Ending what a frozen owner left open on the server."""

from __future__ import annotations

import time

import psycopg

from conduit_dagster.connectors.postgres.errors import Verdicts
from conduit_dagster.connectors.postgres.session import Connection

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
