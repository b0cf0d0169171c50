"""Cancellation of a previous owner's jobs on a server that its successor shares, before anything is sent again.

The operations of a killed or frozen client continue at a Spark Connect server. A session's operations are cancelled by
their tag, by any client of the same user that knows the session's id; the lease stores both.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

import structlog

from conduit_dagster.spark.connect import is_connect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

log = structlog.get_logger("conduit.spark")
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
