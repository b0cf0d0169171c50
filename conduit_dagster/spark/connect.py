"""Clients of Spark Connect servers: sessions, limits of their last calls, and the end of a previous owner's jobs.

The operations of a killed or frozen client continue at its server. They are cancelled by their tag, by any client of
the same user that knows the session's id; the lease stores both.
"""

# pyright: reportPrivateUsage=none

from __future__ import annotations

import atexit
import hashlib
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.explain import explain
from conduit_dagster.spark.spark_settings import SparkSettings, connect_conf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

# 0.05 s, four times longer after each try, at most 5 s: about 25 s in total
TRIES, MOST_BACKOFF_MS = 8, 5_000


_FROZEN = "see what stopped the server; the project's own ends by: conduit-dagster spark stop"
_ELSEWHERE = "check spark.url, and that a Spark Connect server runs there, which takes SPARK_CONNECT_AUTHENTICATE_TOKEN"
_EXPIRED = (
    # also in [RESPONSE_ALREADY_RECEIVED], where the server was restarted behind the first rows of an answer
    "INVALID_HANDLE.SESSION_",
    # the server was restarted: what one thread is told of it, closes PySpark's client for all
    "[NO_ACTIVE_SESSION]",
    "Received incorrect server side session identifier",
)
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
        raise unreachable(settings.url, error, _ELSEWHERE) from error
    return spark


def has_expired(error: Exception) -> bool:
    """Return whether Spark reports that the server does not know the session, or no longer."""
    text = str(error)
    return any(part in text for part in _EXPIRED)


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


def unreachable(url: str, error: Exception, fix: str) -> TransientError:
    """Return the error for a server that did not accept a session."""
    # the text after a semicolon may be a token
    server = url.partition(";")[0]
    return TransientError(
        f"the Spark Connect server {server} did not take the session: {explain(error)}",
        code="spark.unreachable",
        fix=fix,
    )


_PATIENCE, _AGAIN = 10.0, 0.1
_CANCELLED = "cancelled_ns"
_WORKERS_END = 4.5
"""Seconds after which the Python worker of a cancelled task has ended: Spark checks every two seconds whether a task
was cancelled, gives its worker two more (``spark.python.task.killTimeout``), and notifies no client when it has ended.
"""


def owner_tag(pipeline: str, epoch: int) -> str:
    """Return the tag for all jobs of one owner of a pipeline; a valid tag for any pipeline name."""
    return f"conduit-{hashlib.sha256(pipeline.encode()).hexdigest()[:16]}-{epoch}"


def whereabouts(spark: SparkSession, tag: str, cancelled_ns: int = 0) -> dict[str, str]:
    """Return the address of the owner's jobs for a successor to cancel, as JSON values; a classic session has none.

    ``cancelled_ns``: when the owner cancelled them itself; 0 if it did not.
    """
    cancelled = {_CANCELLED: str(cancelled_ns)} if cancelled_ns else {}
    if not is_connect(spark):
        return cancelled
    client: Any = spark.client
    return {"session": client._session_id, "user": client._user_id or "", "tag": tag, **cancelled}


def end_jobs_of(spark: SparkSession, owner: Mapping[str, str]) -> int:
    """Cancel the jobs that a previous owner still runs at this server and wait for their end; return their number.

    Also wait for the end of the tasks that it cancelled itself. ``owner``: the result of :func:`whereabouts` for that
    owner. Not guaranteed if it used another server, or if the server does not end a job within ten seconds: a direct
    destination is at-least-once.
    """
    ended = _ended(spark, owner) if "session" in owner and is_connect(spark) else 0
    since = 0.0 if ended else (time.time_ns() - int(owner.get(_CANCELLED, "0"))) / 1e9
    # a clock that was set back must not stretch the wait
    time.sleep(min(_WORKERS_END, max(0.0, _WORKERS_END - since)))
    return ended


def _ended(spark: SparkSession, owner: Mapping[str, str]) -> int:
    ended, until = set[str](), time.monotonic() + _PATIENCE
    while running := _interrupted(spark, owner):
        ended |= set(running)
        if time.monotonic() > until:
            log.warning("jobs of an owner before this one do not end", tag=owner["tag"], jobs=len(running))
            break
        time.sleep(_AGAIN)
    return len(ended)


def _interrupted(spark: SparkSession, owner: Mapping[str, str]) -> list[str]:
    import grpc

    # the public call interrupts only the client's own session
    client: Any = spark.client
    request = client._interrupt_request("tag", owner["tag"])
    request.session_id, request.user_context.user_id = owner["session"], owner["user"]
    request.ClearField("client_observed_server_side_session_id")
    try:
        return list(client._stub.Interrupt(request, metadata=client._builder.metadata()).interrupted_ids)
    except grpc.RpcError:
        return []  # the server no longer knows the session: nothing of it is running
