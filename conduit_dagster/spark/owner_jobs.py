"""Jobs of a pipeline's owner on a server that its successor shares: they are cancelled before anything is sent again.

A killed client's operations go on at a Spark Connect server, and a frozen one's too. What a session runs is cancelled
by its tag, which any client of the same user may ask for that knows the session's id; the lease keeps both.
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
"""Seconds after which the Python worker of a cancelled task is gone: Spark looks every two seconds whether a task was
cancelled, gives its worker two more (``spark.python.task.killTimeout``), and tells no client when it has ended it."""


def owner_tag(pipeline: str, epoch: int) -> str:
    """The tag of all jobs that one owner of a pipeline runs; of a tag's characters whatever the pipeline is called."""
    return f"conduit-{hashlib.sha256(pipeline.encode()).hexdigest()[:16]}-{epoch}"


def whereabouts(spark: SparkSession, tag: str) -> dict[str, str]:
    """What a successor needs to cancel the owner's jobs, as JSON values; nothing for a session of its own process."""
    if not is_connect(spark):
        return {}
    client: Any = spark.client
    return {"session": client._session_id, "user": client._user_id or "", "tag": tag}


def end_jobs_of(spark: SparkSession, owner: Mapping[str, str]) -> int:
    """Cancels what an owner before still runs at this server, and waits for its end; how many jobs that were.

    ``owner`` as :func:`whereabouts` gave it to that owner. Not promised where it used another server, or where the
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

    # the public call asks for the client's own session only
    client: Any = spark.client
    request = client._interrupt_request("tag", owner["tag"])
    request.session_id, request.user_context.user_id = owner["session"], owner["user"]
    request.ClearField("client_observed_server_side_session_id")
    try:
        return list(client._stub.Interrupt(request, metadata=client._builder.metadata()).interrupted_ids)
    except grpc.RpcError:
        return []  # the server does not know the session any more: nothing of it runs
