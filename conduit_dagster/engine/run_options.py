"""Options of one run that its caller chooses, not the pipeline's file."""

from __future__ import annotations

from dataclasses import dataclass

from conduit_dagster.engine.run_status import SOMEBODY, RunOrigin


@dataclass(frozen=True)
class RunOptions:
    """Where a run keeps its data, and when it ends."""

    staging: str
    """URL of the staging folder, shared by driver and workers."""
    drain: bool = False
    """End when the sources are drained up to what they held at the start."""
    lease_seconds: float = 10.0
    parallelism: int | None = None
    """Tasks per step; None asks Spark."""
    patience: float = 30.0
    """Seconds to wait for a state store that does not answer, before the run stops."""
    log: str = ""
    """URL of the commit log's folder; empty: inside the staging folder."""
    about: RunOrigin = SOMEBODY
    """Why the run was started, and what happens when it fails."""

    @property
    def log_url(self) -> str:
        """URL of the commit log's folder."""
        return self.log or f"{self.staging.rstrip('/')}/~log"
