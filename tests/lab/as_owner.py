"""Changes to the state store as a run makes them, without a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conduit_dagster.config.project import Project
from conduit_dagster.state.claim import project_store
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.store import PipelineStore

ERROR = {"code": "x.y", "message": "it broke", "node": "orders:in", "place": None, "fix": "mend it", "fatal": True}


@contextmanager
def owned(project: Path, pipeline: str = "orders") -> Iterator[PipelineStore]:
    """Yield the pipeline's store under its lease."""
    database = project_store(Project.find(project))
    lease = acquire(database, pipeline, 10)
    try:
        yield PipelineStore(database, lease)
    finally:
        lease.release()
        database.dispose()
