"""Opening and closing Spark sessions: local, any master, Spark Connect, or the project's shared server.

With PySpark's own loggers, on which it prints errors as JSON.
"""

# pyright: reportPrivateUsage=none

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from conduit_dagster.spark.classic import has_classic, inside_submit, jvm_ended, open_classic
from conduit_dagster.spark.connect import close_client, is_connect, open_connect
from conduit_dagster.spark.shared import close_current, close_shared, leave_shared, open_shared
from conduit_dagster.spark.spark_settings import LOCAL, SHARED, SparkSettings
from conduit_dagster.spark.sql.sql_session import close_sql_session, forget_sql_session, origin_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SparkSettings",
    "close_current",
    "close_session",
    "default_url",
    "forget_session",
    "has_stopped",
    "is_connect",
    "open_session",
    "parallelism",
]

# partition ids are counted over a range with more rows than any cluster has slots
_MOST_SLOTS = 65_536

_SPLITS = re.compile(r"Range \(0, \d+, step=1, splits=(\d+)\)")

_slots: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


def open_session(settings: SparkSettings, app_name: str) -> SparkSession:
    """Return a session: the one that this process already has, or a new one.

    A process with a classic session can't also be a Connect client, and its JVM outlives the session: the first call
    determines ``verbose`` and Java. A session that has expired, or whose JVM or shared server was killed, is replaced,
    so call this again when restarting a pipeline. The caller's SIGINT handler is kept.
    """
    guard_loggers()
    if not settings.verbose:
        hush_errors()
    if settings.shared:
        return open_shared(settings, app_name)
    return open_connect(settings) if settings.connect else open_classic(settings, app_name)


def close_session(spark: SparkSession) -> None:
    """End the session; a Connect server keeps running. Safe to call twice, and after the JVM was killed."""
    _slots.pop(spark, None)
    close_sql_session(spark)
    if not is_connect(spark):
        if not jvm_ended():
            spark.stop()
    elif not close_shared(spark):
        close_client(spark)


def has_stopped(spark: SparkSession) -> bool:
    """Return whether this process has ended a classic session, perhaps in another thread."""
    return not is_connect(spark) and spark.sparkContext._jsc is None


def forget_session(spark: SparkSession) -> None:
    """Drop a session that its Connect server has ended, so that the next attempt opens another.

    :func:`open_session` replaces that of another server by itself.
    """
    origin = origin_of(spark)
    if origin is spark:
        leave_shared(spark)
    else:
        forget_sql_session(origin)


def default_url(lasting: bool) -> str:
    """Return the URL to use when none is configured: shared if a server may outlive this process.

    A process that has a session, or that ``spark-submit`` runs, keeps using it.
    """
    return SHARED if lasting and not has_classic() and not inside_submit() else LOCAL


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once, according to Spark; computed once per Connect session."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    if spark not in _slots:
        _slots[spark] = _planned_slots(spark) or _occupied_slots(spark)
    return _slots[spark]


def _planned_slots(spark: SparkSession) -> int | None:
    """Return the number of slots from the plan of a range, which saves a job; None if the plan looks different."""
    frame: Any = spark.range(_MOST_SLOTS)
    told = _SPLITS.search(frame._explain_string())
    return None if told is None else int(told.group(1))


def _occupied_slots(spark: SparkSession) -> int:
    from pyspark.sql import functions as f

    partitions = spark.range(_MOST_SLOTS).select(f.spark_partition_id().alias("id"))
    return int(partitions.agg(f.max("id")).collect()[0][0]) + 1


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
