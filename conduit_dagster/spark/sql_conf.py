"""What every session of ours is set to."""

from __future__ import annotations

import os

from conduit_dagster.spark.settings import SparkSettings


def sql_conf(settings: SparkSettings) -> dict[str, str]:
    """The settings of a session, whatever it runs on."""
    own = {
        # a step is one stage; planning it anew while it runs only costs
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # a simplified one leaves causes out, and with them the class of an error that was wrapped
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    }
    shuffles = settings.parallelism or (os.cpu_count() if settings.local or settings.shared else None)
    if shuffles:
        own["spark.sql.shuffle.partitions"] = str(shuffles)
    return own


def connect_conf(settings: SparkSettings) -> dict[str, str]:
    """The same for a Connect server's session, where the default parallelism is not ours to set."""
    own = sql_conf(settings)
    if settings.parallelism:
        own["spark.sql.leafNodeDefaultParallelism"] = str(settings.parallelism)
    return own
