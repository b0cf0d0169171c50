"""One pipeline at one moment: as its file, the state store and Dagster's run storage know it."""

from __future__ import annotations

from dataclasses import dataclass

from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.recovery_store import NEVER, RecoveryState


@dataclass(frozen=True)
class File:
    """What the pipeline's file asks for."""

    pipeline: str
    job: str
    running: bool
    """``status: running``."""
    trigger: str
    """``continuous``, ``available-now``, or a timed one, which has a schedule."""
    digest: str
    policy: Policy
    place: str
    """The file's path."""
    runnable: bool = True
    """False where a run would be refused."""


@dataclass(frozen=True)
class Stored:
    """What the state store knows; that of a pipeline that never ran is all empty."""

    status: str = ""
    reason: str = ""
    owned: bool = False
    """Somebody holds the lease and is alive, or was not silent for long enough."""
    recovery: RecoveryState = NEVER


@dataclass(frozen=True)
class LastRun:
    """The newest run of the pipeline's own job."""

    run_id: str
    active: bool
    failed: bool
    cancelled: bool
    created_ns: int
    failure: int | None = None
    """The failure that it follows, where it is a restart."""


@dataclass(frozen=True)
class Known:
    """All of it."""

    file: File
    stored: Stored
    run: LastRun | None
