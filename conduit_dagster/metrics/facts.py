"""Numbers exported for a pipeline, whatever their source. None: not known, and then not exported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper ends of the classes of step seconds; the last class has none."""


@dataclass(frozen=True)
class SourceFacts:
    """Records of one source; ``read`` = ``acked`` + ``nacked``, filtered ones are acked."""

    read: int = 0
    acked: int = 0
    filtered: int = 0
    nacked: int = 0
    lag: int | None = None
    unit: str = ""


@dataclass(frozen=True)
class DestinationFacts:
    """Counts of one destination."""

    records: int = 0
    bytes: int | None = None


@dataclass(frozen=True)
class StepTimes:
    """How long steps took; ``classes`` counts them by :data:`BUCKETS`, one more for what is longer."""

    classes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class LastStep:
    """The newest step that is done."""

    seconds: float
    at: float
    """When it was done, in seconds since the epoch."""


@dataclass(frozen=True)
class PipelineFacts:
    """Numbers of one pipeline at one moment."""

    pipeline: str
    status: str
    sources: dict[str, SourceFacts] = field(default_factory=dict[str, SourceFacts])
    destinations: dict[str, DestinationFacts] = field(default_factory=dict[str, DestinationFacts])
    dead_letters: int | None = None
    restarts: int | None = None
    restart_at: float | None = None
    """When the pending restart is due, in seconds since the epoch."""
    last: LastStep | None = None
    times: StepTimes | None = None
