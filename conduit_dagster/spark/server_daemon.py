"""The parent of the shared server's Python workers: exits once it has had no workers for a minute or two.

Spark starts one parent per session (46 MB) and keeps it after the session's end, so a server that runs for weeks
would accumulate them. Spark starts a new one when it finds the old one gone.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from pyspark import daemon

from conduit_dagster.spark import worker_daemon
from conduit_dagster.warm.preload import preload
from conduit_dagster.warm.protocol import MODULES

# Spark stops a worker that has been idle for a minute
_SECONDS = float(os.environ.get("CONDUIT_WORKER_DAEMON_SECONDS", "60"))


class _Watch:
    """A periodic check for workers."""

    def __init__(self) -> None:
        self._idle = 0

    def look(self, number: int, frame: FrameType | None) -> None:
        """Send the daemon SIGTERM after two consecutive checks without a worker."""
        self._idle = 0 if _has_workers() else self._idle + 1
        if self._idle > 1:
            os.kill(os.getpid(), signal.SIGTERM)


def _has_workers() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


if __name__ == "__main__":
    # a warm process has already imported them
    preload(MODULES["workers"])
    worker_daemon.patch()
    # only now: however long the imports took, Spark has its full time to request a first worker. A fork has no timer
    signal.signal(signal.SIGALRM, _Watch().look)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, _SECONDS)
    daemon.manager()
