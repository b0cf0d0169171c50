"""The project's state store and logs, as a source looks at them on the driver. Tasks never do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from conduit_dagster.config.project import Project
from conduit_dagster.state.database import reading
from conduit_dagster.state.outage import is_outage, unreachable
from conduit_dagster.state.project_store import project_store

T = TypeVar("T")


class ProjectView:
    """Opened when it is looked at first."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    @cached_property
    def project(self) -> Project:
        """The project whose root this is."""
        return Project.find(self._root)

    @cached_property
    def _database(self) -> sa.Engine:
        return project_store(self.project)

    def read(self, work: Callable[[sa.Connection], T], /) -> T:
        """What ``work`` reads, all of it at one moment. Raises ``TransientError`` (``state.unreachable``)."""
        try:
            with reading(self._database) as connection:
                return work(connection)
        except DBAPIError as error:
            if not is_outage(error):
                raise
            raise unreachable(self._database, error, "the state store does not answer") from error
