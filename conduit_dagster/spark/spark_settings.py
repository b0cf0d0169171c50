"""Settings of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SHARED = "shared"
LOCAL = "local[*]"
LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs and how it is configured.

    ``url`` is a master (``local[*]``, ``spark://…``, ``yarn``), a Spark Connect server (``sc://…``), or ``shared``:
    the local Connect server of the project with this ``home``, started on demand and stopped after ``idle`` seconds
    without a session. ``conf`` overrides what this package sets. ``parallelism`` is the number of tasks per job;
    without it, Spark's default. ``verbose`` shows Spark's log on stderr; a shared server logs to its file.
    """

    url: str = LOCAL
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    parallelism: int | None = None
    verbose: bool = False
    home: Path = Path(".conduit")
    idle: float = IDLE_SECONDS

    @property
    def connect(self) -> bool:
        """Whether ``url`` is a Spark Connect server not managed by this project."""
        return self.url.startswith("sc://")

    @property
    def shared(self) -> bool:
        """Whether ``url`` is the project's own Spark Connect server."""
        return self.url == SHARED

    @property
    def local(self) -> bool:
        """Whether the driver is this process's own and its tasks run on this machine."""
        return self.url.startswith("local")
