"""PySpark's own loggers, on which it prints errors as JSON, and a warning that it prints beside one."""

# pyright: reportPrivateUsage=none

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any


def guard_loggers() -> None:
    """Make PySpark's way to get a logger safe for threads, in this process.

    It changes the class of all loggers that are made meanwhile. Of two threads that do so at once, the second one
    leaves PySpark's class behind: each logger that the process makes from then on prints JSON, and Dagster can make
    none.
    """
    from pyspark.logger import PySparkLogger

    plain = PySparkLogger.getLogger
    if not getattr(plain, "is_guarded", False):
        PySparkLogger.getLogger = staticmethod(_guarded(plain))


def hush_errors() -> None:
    """Keep PySpark from printing what it raises as well: an error of a query, as JSON with Java's stack trace, and that
    a server was asked often enough."""
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _guarded(plain: Callable[[str | None], Any]) -> Callable[..., Any]:
    def get(name: str | None = None) -> Any:
        # logging holds it while it makes a logger
        with logging._lock:  # pyright: ignore[reportAttributeAccessIssue]
            return plain(name)

    get.is_guarded = True  # pyright: ignore[reportFunctionMemberAccess]
    return get
