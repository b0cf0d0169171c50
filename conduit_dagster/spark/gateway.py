"""The JVM behind a classic session: detecting that it died, and recovering from that.

PySpark keeps it in private class attributes and never checks whether it is alive, so a process whose JVM was killed
could not open a session again.
"""
# pyright: reportPrivateUsage=none

from __future__ import annotations

from subprocess import Popen, TimeoutExpired


def jvm_ended(within: float = 0) -> bool:
    """Return whether this process started a JVM that is gone (killed, out of memory).

    A dying process closes its sockets a moment before it exits: ``within`` is how many seconds to wait for the exit.
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
    """Clear PySpark's references to the JVM, so that the next session starts a new one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
