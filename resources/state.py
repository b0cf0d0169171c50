"""The project and its state store."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import sqlalchemy as sa
from pydantic import Field, PrivateAttr

from conduit_dagster.config.project import Project
from conduit_dagster.state.claim import project_store


class StateResource(dg.ConfigurableResource[None]):
    """State that must outlive a run. Its URL may hold a password: it is read from the project and is not config."""

    root: str = Field(description="The project's root folder; its conduit.yaml says where the state store is.")
    _database: sa.Engine | None = PrivateAttr(default=None)

    @property
    def project(self) -> Project:
        """The project as its settings file defines it now."""
        return Project.find(Path(self.root))

    @property
    def database(self) -> sa.Engine:
        """The state store, opened on first use."""
        if self._database is None:
            self._database = project_store(self.project)
        return self._database

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the store's connections."""
        if self._database is not None:
            self._database.dispose()
