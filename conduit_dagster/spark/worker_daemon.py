"""The parent of Spark's Python workers on a local master; Spark runs it as a module (``spark.python.daemon.module``).

It is PySpark's own with two differences. It imports what tasks need before it forks: each worker would import it in its
first task. And a worker exits silently when its JVM is gone. PySpark's prints a stack trace, which on a local master
sometimes reaches the terminal of the user who stopped the pipeline.
"""

from __future__ import annotations

import os
import socket
from typing import IO

from pyspark import daemon
from pyspark.serializers import write_int

from conduit_dagster.warm.preload import preload
from conduit_dagster.warm.protocol import MODULES

_serve = daemon.worker


def patch() -> None:
    """Make PySpark's daemon and its workers exit silently when the JVM is gone."""
    daemon.worker = serve
    daemon.write_int = _acknowledge  # pyright: ignore[reportPrivateImportUsage]


def serve(sock: socket.socket, authenticated: bool) -> int:
    """Run a forked worker and return its exit code. A failed task is not visible here: it was reported to the JVM."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


def _acknowledge(number: int, stream: IO[bytes]) -> None:
    """Tell the JVM the port of this process, or a forked worker's id."""
    try:
        write_int(number, stream)
        stream.flush()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


if __name__ == "__main__":
    preload(MODULES["workers"])
    patch()
    daemon.manager()
