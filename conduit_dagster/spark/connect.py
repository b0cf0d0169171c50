"""Sessions on a Spark Connect server that is not managed by this project."""

# pyright: reportPrivateUsage=none

from __future__ import annotations

import atexit
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.explain import explain
from conduit_dagster.spark.spark_settings import SparkSettings, connect_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# 0.05 s, four times longer after each try, at most 5 s: about 25 s in total
TRIES, MOST_BACKOFF_MS = 8, 5_000


_FROZEN = "see what stopped the server, or end it: conduit-dagster spark stop"
_LAST_CALL = 2.0
"""Seconds for a call that ends a job or the session, instead of PySpark's ten minutes."""
_opened = threading.Event()
log = structlog.get_logger("conduit.spark")


def open_connect(settings: SparkSettings, renews: bool = True) -> SparkSession:
    """Return the process's session, a new one if it has expired. Give up after half a minute without answer."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # this does not contact the server yet, so the retry policy applies from the first call
    spark = SparkSession.builder.remote(settings.url).getOrCreate()
    _opened.set()
    _be_patient(spark, TRIES)
    limit_last_calls(spark)
    try:
        for key, value in {**connect_conf(settings), **settings.conf}.items():
            spark.conf.set(key, value)
    except PySparkException as error:
        # not closed: other threads that use it are to get this error too, and a restarted server does not know it
        forget_client(spark)
        if renews and has_expired(error):
            return open_connect(settings, renews=False)
        raise unreachable(settings.url, error) from error
    return spark


def has_expired(error: Exception) -> bool:
    """Return whether Spark reports that the server does not know the session, or no longer."""
    return "[INVALID_HANDLE.SESSION_" in str(error)


def has_opened() -> bool:
    """Return whether this process has used a server that is not managed by this project, even if it has lost it."""
    return _opened.is_set()


def forget_client(spark: SparkSession) -> None:
    """Make PySpark create another session where it would use this one: as its default, and in this thread."""
    from pyspark.sql.connect.session import SparkSession as Client

    client: Any = spark
    with Client._lock:
        if Client._default_session is client:
            Client._default_session = None
    if getattr(Client._active_session, "session", None) is client:
        Client._active_session.session = None


def close_client(spark: SparkSession) -> None:
    """Release the session; try only once if the server is gone."""
    _be_patient(spark, tries=1)
    stop_client(spark)


def stop_client(spark: SparkSession, release: bool = True) -> None:
    """Release the session within two seconds, even if the server is frozen, and close the connection.

    Without ``release``, for a server that is gone, only the latter.
    """
    client: Any = spark.client
    try:
        if release:
            client.release_session()
    except Exception as error:  # noqa: BLE001  # a server that has just gone has lost the session anyway
        if "DEADLINE_EXCEEDED" in str(error):
            log.warning("the Spark server does not answer: its session is left open", fix=_FROZEN)
    spark.release_session_on_close = False  # type: ignore[attr-defined]  # pyright: ignore
    spark.stop()


def limit_last_calls(spark: SparkSession) -> None:
    """Limit the calls that end jobs and sessions: a frozen server must not keep this process from ending."""
    client: Any = spark.client
    # PySpark's builder has no option for it
    deadlines = getattr(client, "_rpc_deadlines", None)
    if deadlines is not None:
        client._rpc_deadlines = replace(deadlines, interrupt=_LAST_CALL, release_session=_LAST_CALL)
    # a thread that the interpreter joins when it ends calls this one, and PySpark gives it no limit at all
    if (stub := getattr(client, "_stub", None)) is not None:
        stub.ReleaseExecute = partial(stub.ReleaseExecute, timeout=_LAST_CALL)
    # PySpark empties a cache of ML models when the process ends, without a limit; it ends with the session too
    if hasattr(client, "_on_exit"):
        atexit.unregister(client._on_exit)


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _be_patient(spark: SparkSession, tries: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=tries, max_backoff=MOST_BACKOFF_MS)])


def unreachable(url: str, error: Exception) -> TransientError:
    """Return the error for a server that did not accept a session."""
    # the text after a semicolon may be a token
    server = url.partition(";")[0]
    return TransientError(
        f"the Spark Connect server {server} did not take the session: {explain(error)}",
        code="spark.unreachable",
        fix="`conduit-dagster spark status` shows the local server, `conduit-dagster spark start` starts it",
    )
