"""State store for read-only commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.state import tables
from conduit_dagster.state.claim import has_claim, project_store, require_known_place, unusable_home
from conduit_dagster.state.database import make_engine, unreachable
from conduit_dagster.state.store_file import sqlite_file

if TYPE_CHECKING:
    from conduit_dagster.config.project import Project


def existing_store(project: Project) -> sa.Engine | None:
    """Return the project's state store, or None if nothing has ever run: reading must not create it.

    Raises ``FatalError`` (``state.lost``, ``state.older``) without changing anything if the store is lost.
    """
    require_known_place(project)
    is_claimed = has_claim(project.home) and not project.settings.state.accept_new
    try:
        return project_store(project) if is_claimed or _has_content(project.state_url) else None
    except OSError as error:
        raise unusable_home(error, project.home) from error


def _has_content(url: str) -> bool:
    address = sa.make_url(url)
    if address.get_backend_name() == "sqlite":
        file = sqlite_file(address)
        return file is not None and file.is_file() and file.stat().st_size > 0
    engine = make_engine(url)
    try:
        return sa.inspect(engine).has_table(tables.meta.name)
    except SQLAlchemyError as error:
        raise unreachable(engine, error, "the state store can't be opened") from error
    finally:
        engine.dispose()
