"""The session for SQL, separate so that the meaning of a query does not depend on user settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from conduit_dagster.spark.connect import is_connect, limit_last_calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 256
"""Rows per batch that Spark passes to a Python worker; a smaller block is padded to this size."""
_MEANING: Final = (
    "spark.sql.ansi.", "spark.sql.collation.", "spark.sql.decimalOperations.", "spark.sql.function.", "spark.sql.icu.",
    "spark.sql.json", "spark.sql.legacy.", "spark.sql.mapKeyDedupPolicy", "spark.sql.parser.",
    "spark.sql.timestampType",
)  # fmt: skip
"""Beginnings of the names of settings that decide what a query means: Spark's defaults apply, not the user's values."""
_CONF = {
    # an overflow or a failed cast is an error, which nacks its record, never a wrong value
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.adaptive.enabled": "false",
    # a common subexpression would be computed up front, outside of the expression that catches a record's error
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH),
    # filler rows that are compressed push nothing through a buffer: each question would wait for many of them
    "spark.sql.execution.arrow.compression.codec": "none",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
_sessions: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()
_origins: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()


def sql_session(spark: SparkSession) -> SparkSession:
    """Return the session for SQL that belongs to ``spark``, on the same context or server; created once."""
    if spark not in _sessions:
        # a cloned Connect session keeps its settings and artifacts; with a classic one the context has them all
        own: SparkSession = spark.cloneSession() if is_connect(spark) else spark.newSession()  # type: ignore[attr-defined]  # pyright: ignore
        if is_connect(own):
            limit_last_calls(own)
        _set_rules(own.conf)
        _sessions[spark] = own
        _origins[own] = spark
    return _sessions[spark]


def _set_rules(conf: Any) -> None:
    for key in conf.getAll:
        if key.startswith(_MEANING) and conf.isModifiable(key):
            conf.unset(key)
    for key, value in _CONF.items():
        conf.set(key, value)


def origin_of(spark: SparkSession) -> SparkSession:
    """Return the session that this SQL session was created for; any other session is returned unchanged."""
    return _origins.get(spark, spark)


def forget_sql_session(spark: SparkSession) -> SparkSession | None:
    """Return the SQL session that was created for ``spark``, if any; :func:`sql_session` then creates another."""
    return _sessions.pop(spark, None)


def close_sql_session(spark: SparkSession) -> None:
    """Release the SQL session on its server, if any; a server that has ended has lost it anyway."""
    own = forget_sql_session(spark)
    if own is not None and is_connect(own):
        try:
            own.stop()
        except Exception:  # noqa: BLE001  # the server is gone, or says no: there is nothing left to give back
            pass
