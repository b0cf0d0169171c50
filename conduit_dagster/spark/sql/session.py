"""The session that SQL is computed in: one of its own, so that what a query means depends on nobody's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from conduit_dagster.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 256
"""Rows that Spark hands to a Python worker at a time; a block of fewer is filled up to that."""
_CONF = {
    # an overflow or a cast that fails is an error, which nacks its record, never a wrong value
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.adaptive.enabled": "false",
    # what several expressions have in common is computed before them, outside of what catches a record's error
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH),
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
_sessions: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()
_origins: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()


def sql_session(spark: SparkSession) -> SparkSession:
    """The session beside ``spark`` that computes SQL, on the same context or server; made once."""
    if spark not in _sessions:
        # a clone of a Connect session keeps what was set and shipped there; of a classic one the context has all
        own: SparkSession = spark.cloneSession() if is_connect(spark) else spark.newSession()  # type: ignore[attr-defined]  # pyright: ignore
        for key, value in _CONF.items():
            own.conf.set(key, value)
        _sessions[spark] = own
        _origins[own] = spark
    return _sessions[spark]


def origin_of(spark: SparkSession) -> SparkSession:
    """The session that this one was made beside, else itself."""
    return _origins.get(spark, spark)


def close_sql_session(spark: SparkSession) -> None:
    """Gives it back to its server, if there is one; a server that is gone forgets it by itself."""
    own = _sessions.pop(spark, None)
    if own is not None and is_connect(own):
        try:
            own.stop()
        except Exception:  # noqa: BLE001  # the server is gone, or says no: there is nothing left to give back
            pass
