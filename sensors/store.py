"""The state store between the ticks of one process."""

from __future__ import annotations

import sqlalchemy as sa

from conduit_dagster.config.project import Project
from conduit_dagster.state.claim import project_store


class KeptStore:
    """Opened once, and again where the project's settings name another one or keep another history."""

    def __init__(self) -> None:
        self._opened: tuple[object, sa.Engine] | None = None

    def of(self, project: Project) -> sa.Engine:
        """The project's store. Raises what opening it raises."""
        settings = (project.state_url, project.settings.state.history)
        if self._opened is None or self._opened[0] != settings:
            if self._opened is not None:
                self._opened[1].dispose()
            self._opened = None
            self._opened = (settings, project_store(project))
        return self._opened[1]
