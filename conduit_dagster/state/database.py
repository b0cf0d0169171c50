"""Opening the state store's database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.state import schema

_READS = "conduit_reads"


def open_database(url: str) -> sa.Engine:
    """A connected engine whose tables are there, in the version that this program knows.

    SQLite runs in WAL mode with full synchronisation: a committed transaction survives a power cut.
    """
    engine = sa.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_immediate)
    try:
        if url.startswith("sqlite:///"):
            Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        _prepare(engine)
    except (SQLAlchemyError, OSError) as error:
        raise TransientError(
            f"the state store can't be opened: {error.__cause__ or error}",
            code="state.unreachable",
            place=engine.url.render_as_string(hide_password=True),
            fix="check CONDUIT_STATE_URL or state.url in conduit.yaml, and that the folder can be written",
        ) from error
    return engine


def _configure_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # BEGIN is ours: the driver's own would start read transactions
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    # two writers must meet at the beginning, not after one of them has read what the other changes
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def reading(engine: sa.Engine) -> sa.Connection:
    """A connection that only reads: it waits for no writer, and no writer for it."""
    return engine.execution_options(**{_READS: True}).connect()


def _prepare(engine: sa.Engine) -> None:
    version = sa.select(schema.meta.c.value).where(schema.meta.c.name == "version")
    with engine.begin() as connection:
        schema.meta.create(connection, checkfirst=True)
        found = connection.execute(version).scalar_one_or_none()
        if found is None:
            schema.metadata.create_all(connection)
            connection.execute(schema.meta.insert().values(name="version", value=str(schema.VERSION)))
        elif int(found) != schema.VERSION:
            raise FatalError(
                f"the state store has version {found}, this program knows version {schema.VERSION}",
                code="state.version",
                place=engine.url.render_as_string(hide_password=True),
                fix="install the version of conduit-dagster that wrote it",
            )
