"""The state store for verbs that only read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.state import schema
from conduit_dagster.state.database import open_database

if TYPE_CHECKING:
    from conduit_dagster.config.project import Project

_SQLITE = "sqlite:///"


def existing_store(project: Project) -> sa.Engine | None:
    """The project's state store, or None where nothing ever ran: looking must not create it."""
    url = project.state_url
    if url.startswith(_SQLITE):
        return open_database(url) if Path(url.removeprefix(_SQLITE)).is_file() else None
    return open_database(url) if _has_tables(url) else None


def _has_tables(url: str) -> bool:
    try:
        engine = sa.create_engine(url)
        found = sa.inspect(engine).has_table(schema.meta.name)
        engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        raise TransientError(
            f"the state store can't be opened: {error.__cause__ or error}",
            code="state.unreachable",
            fix="check CONDUIT_STATE_URL or state.url in conduit.yaml",
        ) from error
    return found
