"""The parent of Spark's Python workers; Spark runs it as a module (``spark.python.daemon.module``).

It is PySpark's own with four differences. It imports what tasks need before it forks: each worker would import it in
its first task. A worker exits silently when its JVM is gone: PySpark's prints a stack trace, which on a local master
sometimes reaches the terminal of the user who stopped the pipeline. It and its workers ignore SIGTERM, as their JVM
does (:data:`conduit_dagster.spark.java.STAYS`), and end with their input. And with ``CONDUIT_WORKER_DAEMON_SECONDS`` in
its environment it exits once it has had no workers for a while: Spark starts one parent per session (46 MB) and keeps
it after the session's end, so a shared server that runs for weeks would accumulate them. Spark starts a new one when
it finds the old one gone.
"""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType
from typing import IO

from pyspark import daemon
from pyspark.serializers import write_int

from conduit_dagster.processes import end_forks_as_usual
from conduit_dagster.warm.protocol import MODULES, preload

_IDLE = "CONDUIT_WORKER_DAEMON_SECONDS"
"""Environment variable: seconds between two checks for workers. Spark stops a worker that was idle for a minute."""
_END = signal.SIGUSR2
"""The signal that ends this process in place of SIGTERM."""
_serve = daemon.worker


def patch() -> None:
    """Make PySpark's daemon and its workers exit silently when the JVM is gone, and not before."""
    daemon.worker = serve
    daemon.write_int = _acknowledge  # pyright: ignore[reportPrivateImportUsage]
    # programs that a plugin starts would inherit an ignored signal, and stay when it ends them
    signal.signal(signal.SIGTERM, _stay)
    signal.siginterrupt(signal.SIGTERM, False)
    daemon.SIGTERM = _END  # pyright: ignore[reportPrivateImportUsage]


def _stay(number: int, frame: FrameType | None) -> None:
    """Take no notice of SIGTERM."""


def serve(sock: socket.socket, authenticated: bool) -> int:
    """Run a forked worker and return its exit code. A failed task is not visible here: it was reported to the JVM."""
    end_forks_as_usual(_stay)
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        # at once: closing its output, Python would fail to write what still waits, and from 3.13 on print the error
        os._exit(1)


def _acknowledge(number: int, stream: IO[bytes]) -> None:
    """Tell the JVM the port of this process, or a forked worker's id."""
    try:
        write_int(number, stream)
        stream.flush()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


def _end_when_idle(seconds: float) -> None:
    """End this process after two consecutive checks without a worker. A fork has no timer."""
    idle = 0

    def check(number: int, frame: FrameType | None) -> None:
        nonlocal idle
        idle = 0 if _has_workers() else idle + 1
        if idle > 1:
            os.kill(os.getpid(), _END)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


def _has_workers() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


if __name__ == "__main__":
    # a warm process has already imported them
    preload(MODULES["workers"])
    patch()
    # only now: however long the imports took, Spark has its full time to request a first worker
    if _IDLE in os.environ:
        _end_when_idle(float(os.environ[_IDLE]))
    daemon.manager()
