"""Stand-in for the parent of the shared server's Python workers (``spark.python.daemon.module``).

Spark starts one per session, that is, at each start of a pipeline, and its imports take two seconds. So this process
requests a forked one that has already imported them, passes its streams to it and exits with its exit code; if it gets
none, it does the work itself.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

from conduit_dagster.warm.client import NotWarmError, spawn
from conduit_dagster.warm.protocol import ForkRequest

_MODULE = "conduit_dagster.spark.worker_daemon"
_IDLE, _SECONDS = "CONDUIT_WORKER_DAEMON_SECONDS", "60"
"""Variable with which the daemon exits when it is idle. Its module is not imported here: that takes two seconds."""


def main() -> None:
    """Exit with the exit code of the real daemon."""
    # as the daemon: both end with their input, which is one
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.setdefault(_IDLE, _SECONDS)
    try:
        code = _lent()
    except NotWarmError:
        runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)
    else:
        sys.exit(code)


def _lent() -> int:
    request = ForkRequest(_MODULE, sys.argv[1:], str(Path.cwd()), dict(os.environ))
    with spawn("workers", request, [0, 1, 2]) as child:
        child.begin()
        return child.wait()


if __name__ == "__main__":
    main()
