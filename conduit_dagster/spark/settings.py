"""Where Spark runs and how it is set."""

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
    """Where Spark runs and how it is set.

    ``url`` is a master (``local[*]``, ``spark://…``, ``yarn``), a Spark Connect server (``sc://…``), or ``shared``:
    the local Connect server of the project whose ``home`` it is, started on demand, ended after ``idle`` seconds
    without a session. ``conf`` has the last word over what this package sets. ``parallelism`` is how many tasks a
    job is cut into, Spark's own default without it. ``verbose`` shows Spark's log on stderr; a shared server's is in
    its file.
    """

    url: str = LOCAL
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    parallelism: int | None = None
    verbose: bool = False
    home: Path = Path(".conduit")
    idle: float = IDLE_SECONDS

    @property
    def connect(self) -> bool:
        """Whether this is a Spark Connect server that somebody else runs."""
        return self.url.startswith("sc://")

    @property
    def shared(self) -> bool:
        """Whether this is the project's own Spark Connect server."""
        return self.url == SHARED

    @property
    def local(self) -> bool:
        """Whether a driver of this process's own and its tasks share this machine."""
        return self.url.startswith("local")
