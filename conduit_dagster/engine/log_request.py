"""Request to a task that logs the records it reads, and the task's result."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.commit_log.segment_layout import Written


class LogRequest(msgspec.Struct, frozen=True):
    """Destination of one source's records in the log."""

    folder: str
    """URL of the segment."""
    first: int
    """Offset of the step's first record."""


class LogResult(msgspec.Struct, frozen=True):
    """Records of one source that a task has logged."""

    source: str
    ordinal: int
    """Index of its first record in the step's range."""
    written: Written | None
    """The written file; None if there was no record."""
    boundary: Any
    """The source's own position after the last of them."""
