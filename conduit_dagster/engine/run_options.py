"""Options of one run that its caller chooses, as opposed to the pipeline's file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import sqlalchemy as sa

from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.report import RunProgress, RunResult, StepReport
from conduit_dagster.engine.run_status import WITHOUT_RECOVERY, RunOrigin
from conduit_dagster.engine.stop import StopFlag

Ended = Callable[[RunResult], None]
"""Called with the result of one attempt, also of a failed one."""
Listen = Callable[[BoundPipeline, RunOrigin, RunProgress], Ended]
"""Called when an attempt begins, with the counts so far; must neither raise nor take long."""


def ignore_run(bound: BoundPipeline, origin: RunOrigin, progress: RunProgress) -> Ended:
    """Listen to nothing."""
    return ignore_result


Observe = Callable[[StepReport, RunProgress], None]
"""Called after each step, with the run's counts so far."""


def ignore_step(step: StepReport, progress: RunProgress) -> None:
    """Observe nothing."""


def ignore_result(result: RunResult) -> None:
    """Handle no result."""


@dataclass(frozen=True)
class RunOptions:
    """Storage locations of a run, and when it ends."""

    staging: str
    """URL of the staging folder, shared by driver and workers."""
    drain: bool = False
    """End the run once everything that the sources held at its start is read."""
    lease_seconds: float = 10.0
    parallelism: int | None = None
    """Tasks per step; None asks Spark."""
    patience: float = 30.0
    """Seconds to wait for a state store that does not answer before the run stops."""
    log: str = ""
    """URL of the commit log's folder; empty: inside the staging folder."""
    origin: RunOrigin = WITHOUT_RECOVERY
    """Why the run was started, and how its failure is handled."""
    listen: Listen = ignore_run
    """Called when the run begins and ends."""

    @classmethod
    def of(
        cls, project: Project, drain: bool = False, origin: RunOrigin = WITHOUT_RECOVERY, listen: Listen = ignore_run
    ) -> Self:
        """Return the options of a project's runs."""
        settings = project.settings
        return cls(
            project.staging_url,
            drain,
            settings.state.lease,
            settings.spark.parallelism,
            log=project.log_url,
            origin=origin,
            listen=listen,
        )

    @property
    def log_url(self) -> str:
        """URL of the commit log's folder."""
        return self.log or f"{self.staging.rstrip('/')}/~log"


@dataclass(frozen=True)
class RunRequest:
    """A pipeline to run, the location of its state, and the callbacks."""

    bound: BoundPipeline
    database: sa.Engine
    """The state store."""
    options: RunOptions
    stop: StopFlag
    observe: Observe = ignore_step
    on_status: Callable[[RunResult], None] = ignore_result
    """Called with every failure that is followed by a restart, and again when the restart begins."""
