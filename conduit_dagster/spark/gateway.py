"""The JVM behind a classic session: whether it still lives, and how to get over one that does not.

PySpark keeps it in private class attributes and never looks whether it lives, so that a process whose JVM was
killed could not open a session again.
"""
# pyright: reportPrivateUsage=none

from __future__ import annotations

from subprocess import Popen, TimeoutExpired


def jvm_ended(within: float = 0) -> bool:
    """Return whether this process had started a JVM and that one is gone (killed, out of memory).

    A dying process closes its sockets a moment before it is gone: ``within`` waits for that.
    """
    from pyspark import SparkContext

    process: Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(within)
    except TimeoutExpired:
        return False
    return True


def forget_jvm() -> None:
    """Let the next session start a JVM of its own."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
