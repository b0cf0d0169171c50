"""Association of a state store with its project: the same id in the store and in the project's home."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster import storage
from conduit_dagster.recovery.errors import ConduitError, FatalError, from_os_error
from conduit_dagster.state.database import insert_if_absent, is_outage, open_database, place_of, reading, unreachable
from conduit_dagster.state.history import HistoryRetention, retain
from conduit_dagster.state.tables import meta

if TYPE_CHECKING:
    from conduit_dagster.config.project import Project

_FILE = "project"
_STORED = sa.select(meta.c.value).where(meta.c.name == "project")


def open_store(url: str, home: Path) -> sa.Engine:
    """Open the project's store and claim it. Raises as ``open_database`` and :func:`claim_store` do."""
    engine = open_database(url)
    try:
        claim_store(engine, home)
    except ConduitError:
        engine.dispose()
        raise
    return engine


def claim_store(engine: sa.Engine, home: Path) -> str:
    """Associate the store with the project's ``home`` folder; return their common id.

    A home without an id adopts the store's, a new store the home's; of two concurrent claims one wins.
    Raises ``FatalError`` (``state.foreign``) if both have an id and they differ, ``TransientError`` if the store
    (``state.unreachable``) or the folder cannot be written.
    """
    try:
        own = _read(home / _FILE)
        stored = _stored(engine, own or secrets.token_hex(16))
        own = own or _write(home, stored)
    except SQLAlchemyError as error:
        if not is_outage(error):
            raise
        raise unreachable(engine, error, "the state store does not answer") from error
    except OSError as error:
        raise from_os_error(error, "the project's id can't be kept") from error
    if own != stored:
        raise _foreign(engine, home, own, stored)
    return stored


def _stored(engine: sa.Engine, fresh: str) -> str:
    """Return the store's id; set it to ``fresh`` if there is none."""
    with reading(engine) as connection:
        found = connection.execute(_STORED).scalar_one_or_none()
    if found is not None:
        return str(found)
    with engine.begin() as connection:
        insert_if_absent(connection, meta, name="project", value=fresh)
        return str(connection.execute(_STORED).scalar_one())


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _write(home: Path, value: str) -> str:
    """Write the id to the home unless it has one by now; return the id that it has."""
    home.mkdir(parents=True, exist_ok=True)
    # atomically, and never over an existing id
    storage.put_new(str(home / _FILE), f"{value}\n".encode())
    return _read(home / _FILE)


def _foreign(engine: sa.Engine, home: Path, own: str, stored: str) -> FatalError:
    return FatalError(
        f"the state store belongs to project {stored}, and this is project {own} (in {home / _FILE})",
        code="state.foreign",
        place=place_of(engine),
        fix="point CONDUIT_STATE_URL or state.url to this project's own store;"
        f" if it is this one, delete {home.name}/{_FILE} to adopt it",
    )


def project_store(project: Project) -> sa.Engine:
    """Open the project's store; create it if there is none. Raises as :func:`open_store` does."""
    database = open_store(project.state_url, project.home)
    kept = project.settings.state.history
    retain(database, HistoryRetention(kept.keep, kept.most))
    return database
