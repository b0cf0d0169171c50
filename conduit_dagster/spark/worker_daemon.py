"""The parent of Spark's Python workers on a local master; Spark runs it as a module (``spark.python.daemon.module``).

It is PySpark's own, but for one thing: a worker that finds its JVM gone ends without a word. PySpark's prints a stack
trace, which on a local master lands on the terminal of whoever stopped the pipeline, now and then.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_serve = daemon.worker


def serve(sock: socket.socket, authenticated: bool) -> int:
    """What a forked worker does; its exit code. A failed task is not told here: it is in what the JVM was sent."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = serve
    daemon.manager()
