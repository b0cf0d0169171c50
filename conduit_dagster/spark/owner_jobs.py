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
_WORKERS_END = 4.5
"""Seconds after which the Python worker of a cancelled task has ended: Spark checks every two seconds whether a task
was cancelled, gives its worker two more (``spark.python.task.killTimeout``), and notifies no client when it has ended.
"""


def owner_tag(pipeline: str, epoch: int) -> str:
    """Return the tag for all jobs of one owner of a pipeline; a valid tag for any pipeline name."""
    return f"conduit-{hashlib.sha256(pipeline.encode()).hexdigest()[:16]}-{epoch}"


def whereabouts(spark: SparkSession, tag: str) -> dict[str, str]:
    """Return the address of the owner's jobs for a successor to cancel, as JSON values; empty for a classic session."""
    if not is_connect(spark):
        return {}
    client: Any = spark.client
    return {"session": client._session_id, "user": client._user_id or "", "tag": tag}


def end_jobs_of(spark: SparkSession, owner: Mapping[str, str]) -> int:
    """Cancel the jobs that a previous owner still runs at this server and wait for their end; return their number.

    ``owner``: the result of :func:`whereabouts` for that owner. Not guaranteed if it used another server, or if the
    server does not end a job within ten seconds: a direct destination is at-least-once.
    """
    if not owner or not is_connect(spark):
        return 0
    ended, until = set[str](), time.monotonic() + _PATIENCE
    while running := _interrupted(spark, owner):
        ended |= set(running)
        if time.monotonic() > until:
            log.warning("jobs of an owner before this one do not end", tag=owner["tag"], jobs=len(running))
            break
        time.sleep(_AGAIN)
    if ended:
        time.sleep(_WORKERS_END)
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
