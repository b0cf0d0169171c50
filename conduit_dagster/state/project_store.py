"""The state store of a project, as its settings want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from conduit_dagster.state.claim import open_store
from conduit_dagster.state.events import Retention, retain

if TYPE_CHECKING:
    from conduit_dagster.config.project import Project


def project_store(project: Project) -> sa.Engine:
    """Opens it, and creates it where there is none. Raises as :func:`~conduit_dagster.state.claim.open_store` does."""
    database = open_store(project.state_url, project.home)
    kept = project.settings.state.history
    retain(database, Retention(kept.keep, kept.most))
    return database
