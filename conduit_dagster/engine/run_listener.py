"""Callbacks for the beginning and the end of a run."""

from __future__ import annotations

from collections.abc import Callable

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.report import RunProgress, RunResult
from conduit_dagster.engine.run_status import RunOrigin

Ended = Callable[[RunResult], None]
"""Called with the result of one attempt, also of a failed one."""
Listen = Callable[[BoundPipeline, RunOrigin, RunProgress], Ended]
"""Called when an attempt begins, with the counts so far; must neither raise nor take long."""


def nobody(bound: BoundPipeline, about: RunOrigin, progress: RunProgress) -> Ended:
    """Listen to nothing."""
    return _nothing


def _nothing(result: RunResult) -> None:
    """Do nothing."""
