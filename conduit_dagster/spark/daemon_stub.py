"""What the shared server starts as the parent of its Python workers (``spark.python.daemon.module``).

Spark starts one for each session, and a session is a pipeline's start: two seconds of imports. So it asks for a process
that has them already, lends it its streams and ends as that does; where it gets none it does the work itself.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

from conduit_dagster.warm.client import NotWarmError, spawn
from conduit_dagster.warm.protocol import Wanted

_MODULE = "conduit_dagster.spark.server_daemon"


def main() -> None:
    """Ends with the exit code of the real one."""
    try:
        code = _lent()
    except NotWarmError:
        runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)
    else:
        sys.exit(code)


def _lent() -> int:
    wanted = Wanted(_MODULE, sys.argv[1:], str(Path.cwd()), dict(os.environ))
    with spawn("workers", wanted, [0, 1, 2]) as child:
        # Spark ends what it started; a child that is still held ends with this process
        usual = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            child.begin()
        except NotWarmError:
            signal.signal(signal.SIGTERM, usual)
            raise
        return child.wait()


if __name__ == "__main__":
    main()
