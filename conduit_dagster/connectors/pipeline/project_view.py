"""View of the project's state store and logs, for sources on the driver. Tasks never use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from conduit_dagster.config.project import Project
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.state.claim import project_store
from conduit_dagster.state.database import is_outage, open_database, reading, unreachable

T = TypeVar("T")
_SQLITE = "sqlite:///"


class ProjectView:
    """View of the project's state store and logs, opened on first use."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    @lazy_property
    def project(self) -> Project:
        """Project with this root."""
        return Project.find(self._root)

    @lazy_property
    def _store(self) -> sa.Engine:
        return project_store(self.project)

    @property
    def _database(self) -> sa.Engine:
        path = self.project.state_url.removeprefix(_SQLITE)
        if path != self.project.state_url and not Path(path).is_file():
            return open_database(f"{_SQLITE}:memory:")  # nothing ever ran, and reading must not create a store
        return self._store

    def read(self, work: Callable[[sa.Connection], T], /) -> T:
        """Return what ``work`` reads from one snapshot. Raises ``TransientError`` (``state.unreachable``)."""
        database = self._database
        try:
            with reading(database) as connection:
                return work(connection)
        except DBAPIError as error:
            if not is_outage(error):
                raise
            raise unreachable(database, error, "the state store does not answer") from error
