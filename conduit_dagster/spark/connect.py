"""A session on a Spark Connect server that somebody else runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.explain import explain
from conduit_dagster.spark.settings import SparkSettings
from conduit_dagster.spark.sql_conf import connect_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# 0.05 s, times four each time, at most 5 s: about 25 s together
TRIES, MOST_BACKOFF_MS = 8, 5_000


def open_connect(settings: SparkSettings) -> SparkSession:
    """Return the process's session. A server that does not answer is given up after half a minute."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # says nothing to the server yet, so the patience holds from the first call
    spark = SparkSession.builder.remote(settings.url).getOrCreate()
    _be_patient(spark, TRIES)
    try:
        for key, value in {**connect_conf(settings), **settings.conf}.items():
            spark.conf.set(key, value)
    except PySparkException as error:
        # also forgets the session, which a restarted server does not know: the next call makes a new one
        close_client(spark)
        raise unreachable(settings.url, error) from error
    return spark


def close_client(spark: SparkSession) -> None:
    """Gives the session back; a server that is gone is asked once."""
    _be_patient(spark, tries=1)
    spark.stop()


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _be_patient(spark: SparkSession, tries: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=tries, max_backoff=MOST_BACKOFF_MS)])


def unreachable(url: str, error: Exception) -> TransientError:
    """What to say where a server does not take a session."""
    # what follows a semicolon may be a token
    server = url.partition(";")[0]
    return TransientError(
        f"the Spark Connect server {server} did not take the session: {explain(error)}",
        code="spark.unreachable",
        fix="`conduit-dagster spark status` shows the local server, `conduit-dagster spark start` starts it",
    )
