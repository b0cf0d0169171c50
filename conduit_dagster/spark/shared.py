"""This process's session on the project's shared server."""

# pyright: reportPrivateUsage=none

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import structlog

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.spark.classic import has_classic
from conduit_dagster.spark.connect import MOST_BACKOFF_MS, TRIES, limit_last_calls, stop_client, unreachable
from conduit_dagster.spark.server import join_server, stop_unused
from conduit_dagster.spark.server_files import ServerFiles, SessionFile, SparkServer
from conduit_dagster.spark.server_launch import digests
from conduit_dagster.spark.server_monitor import loopback_channel
from conduit_dagster.spark.spark_settings import SparkSettings, connect_conf
from conduit_dagster.spark.sql.sql_session import close_sql_session, forget_sql_session, origin_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import RetryPolicy

log = structlog.get_logger("conduit.spark")
_STATUS = "`conduit-dagster spark status` shows the server, `conduit-dagster spark stop` ends it"


@dataclass(frozen=True, slots=True)
class _Open:
    """A session, its server, and the lock file that marks it as open."""

    spark: SparkSession
    server: SparkServer
    mark: SessionFile
    settings: SparkSettings

    def serves(self, settings: SparkSettings) -> bool:
        same = settings.home.absolute() == self.settings.home.absolute()
        return same and self.server.is_alive() and not self.spark.is_stopped  # type: ignore[attr-defined]  # pyright: ignore


_lock = threading.RLock()
_open: _Open | None = None
# dropped sessions, which need no release
_left: WeakSet[SparkSession] = WeakSet()


def open_shared(settings: SparkSettings, app_name: str) -> SparkSession:
    """Return the process's session on the project's server; a new one if the server has ended. Thread-safe.

    Raises like :func:`~conduit_dagster.spark.server.join_server`, and ``FatalError`` (``spark.session_taken``) in a
    process that has a classic session.
    """
    global _open
    if has_classic():
        raise FatalError(
            "this process has a Spark session of its own and cannot also use the shared server",
            code="spark.session_taken",
            fix="set spark.url to local[*] for it, or open the shared session in another process",
        )
    with _lock:
        if _open is not None and not _open.serves(settings):
            _leave(_open)
        if _open is None:
            _open = _joined(settings, app_name, alone=True)
        return _open.spark


def close_shared(spark: SparkSession) -> bool:
    """End the session if it is on the shared server; return whether it was. The server keeps running."""
    with _lock:
        if _open is not None and _open.spark is spark:
            _drop(_open)
            return True
        return spark in _left


def current_shared() -> SparkSession | None:
    """Return this process's current session on the shared server, if any. Does not block."""
    opened = _open
    return None if opened is None else opened.spark


def leave_shared(spark: SparkSession) -> None:
    """Drop the session without a call, if it is the current one: :func:`open_shared` then opens another."""
    with _lock:
        if _open is not None and _open.spark is spark:
            forget_sql_session(spark)
            _leave(_open)


def server_ended(spark: SparkSession) -> bool:
    """Return whether this is a session on a shared server that has ended or is being stopped. Does not block."""
    opened, spark = _open, origin_of(spark)
    if opened is None or opened.spark is not spark:
        return spark in _left
    known = ServerFiles(opened.settings.home).read()
    return known is None or known.token != opened.server.token or not opened.server.is_alive()


def close_current() -> None:
    """End this process's current session on the shared server, if any."""
    with _lock:
        if _open is not None:
            _drop(_open)


def _drop(old: _Open) -> None:
    """Release the session, without a call if the server is gone."""
    _leave(old)
    is_alive = old.server.is_alive()
    if is_alive:
        close_sql_session(old.spark)
    stop_client(old.spark, release=is_alive)


def _leave(old: _Open) -> None:
    """Drop the session without closing it: other threads may still detect through it that its server is gone."""
    global _open
    _open = None
    _left.add(old.spark)
    old.mark.release()


def _joined(settings: SparkSettings, app_name: str, alone: bool) -> _Open:
    """Open a session; on a new server if the current one has another configuration and no other session."""
    from pyspark.errors import PySparkException

    server, mark = join_server(settings, app_name)
    try:
        spark = _client(server)
        opened = _Open(spark, server, mark, settings)
        fixed = _configured(spark, server, settings)
    except PySparkException as error:
        mark.release()
        raise unreachable(server.url, error, _STATUS) from error
    if not fixed:
        return opened
    if alone and len(ServerFiles(settings.home).sessions()) == 1:
        _leave(opened)
        spark.stop()
        # another process may have joined it meanwhile
        stop_unused(settings.home, server)
        return _joined(settings, app_name, alone=False)
    log.warning(
        "the shared Spark server runs with another configuration",
        keys=fixed,
        fix="conduit-dagster spark stop; the next run starts one with this project's",
    )
    return opened


def _client(server: SparkServer) -> SparkSession:
    from pyspark.sql.connect.session import SparkSession as Client

    # this makes pyspark.sql.functions use a server
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    spark = Client.builder.channelBuilder(loopback_channel(server)).create()
    spark.client.set_retry_policies([_policy(server)])
    # a dropped session would stay PySpark's default, also for new threads
    Client._default_session = Client._active_session.session = spark
    limit_last_calls(spark)  # type: ignore[arg-type]  # pyright: ignore
    return spark  # type: ignore[return-value]  # pyright: ignore


def _policy(server: SparkServer) -> RetryPolicy:
    """Return a policy that retries while the server is alive; once it is gone, calls fail at once, not after 25 s."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    class WhileAlive(DefaultPolicy):
        """Retry policy that ends with the server's process: a killed server does not come back on its port."""

        def can_retry(self, e: BaseException) -> bool:
            """Return whether another call may succeed."""
            return server.is_alive() and super().can_retry(e)

    return WhileAlive(max_retries=TRIES, max_backoff=MOST_BACKOFF_MS)


def _configured(spark: SparkSession, server: SparkServer, settings: SparkSettings) -> list[str]:
    """Set the options that differ from the server's; return the keys that can only be set at its start."""
    for key, value in connect_conf(settings).items():
        spark.conf.set(key, value)
    others = [key for key, digest in digests(settings.conf).items() if server.conf.get(key) != digest]
    fixed = [key for key in others if not spark.conf.isModifiable(key)]
    for key in settings.conf:
        if key not in fixed and spark.conf.isModifiable(key):
            spark.conf.set(key, settings.conf[key])
    return fixed
