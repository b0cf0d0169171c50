"""Statuses of a pipeline (reference 3, Pipeline state management)."""

from __future__ import annotations

from enum import StrEnum


class PipelineStatus(StrEnum):
    """Status of a pipeline in the state store, metrics, checks and commands; stored as its text.

    Not to be confused with ``status`` in a pipeline file: whether the pipeline is meant to run.
    """

    RUNNING = "running"
    RECOVERING = "recovering"
    """Waiting for a restart after a transient error, or in its first window after one."""
    DEGRADED = "degraded"
    """Ended by a fatal error, by the last restart's error, or by a forced stop."""
    STOPPED = "stopped"
    """Ended on request (reason ``user`` or ``system``), or never run."""
