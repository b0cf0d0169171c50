"""Spark settings of every session."""

from __future__ import annotations

import os

from conduit_dagster.spark.spark_settings import SparkSettings


def sql_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the settings for a session, wherever it runs."""
    own = {
        # a step is one stage; replanning it while it runs only costs time
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # a simplified traceback omits causes, and with them the class of a wrapped error
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    }
    shuffles = settings.parallelism or (os.cpu_count() if settings.local or settings.shared else None)
    if shuffles:
        own["spark.sql.shuffle.partitions"] = str(shuffles)
    return own


def connect_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the settings for a Connect server's session, where ``spark.default.parallelism`` is not ours to set."""
    own = sql_conf(settings)
    if settings.parallelism:
        own["spark.sql.leafNodeDefaultParallelism"] = str(settings.parallelism)
    return own
