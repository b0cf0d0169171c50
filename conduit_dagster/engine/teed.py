"""What is said to a task that logs what it reads, and what it says back."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.commit_log.layout import Written


class TeeTo(msgspec.Struct, frozen=True):
    """Where the records of one source go in the log."""

    folder: str
    """URL of the segment."""
    first: int
    """The offset of the step's first record."""


class Teed(msgspec.Struct, frozen=True):
    """What a task has logged of one source."""

    source: str
    ordinal: int
    """The place of its first record in the step's range."""
    written: Written | None
    """None: no record."""
    boundary: Any
    """The source's own position behind the last of them."""
