"""State store for read-only commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.state import tables
from conduit_dagster.state.claim import has_claim, project_store, require_known_place, unusable_home
from conduit_dagster.state.database import make_engine, unreachable

if TYPE_CHECKING:
    from conduit_dagster.config.project import Project

_SQLITE = "sqlite:///"


def existing_store(project: Project) -> sa.Engine | None:
    """Return the project's state store, or None if nothing has ever run: reading must not create it.

    Raises ``FatalError`` (``state.lost``, ``state.older``) without changing anything if the store is lost.
    """
    require_known_place(project)
    url = project.state_url
    if has_claim(project.home) and not project.settings.state.accept_new:
        return project_store(project)
    if url.startswith(_SQLITE):
        try:
            return project_store(project) if _has_content(url) else None
        except OSError as error:
            raise unusable_home(error, project.home) from error
    return project_store(project) if _has_tables(url) else None


def _has_content(url: str) -> bool:
    path = Path(url.removeprefix(_SQLITE))
    return path.is_file() and path.stat().st_size > 0


def _has_tables(url: str) -> bool:
    engine = make_engine(url)
    try:
        return sa.inspect(engine).has_table(tables.meta.name)
    except SQLAlchemyError as error:
        raise unreachable(engine, error, "the state store can't be opened") from error
    finally:
        engine.dispose()
