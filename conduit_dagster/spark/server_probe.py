"""Health check of a server: a real call, with a deadline and the server's token."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conduit_dagster.spark.server_files import SparkServer


def loopback_channel(server: SparkServer) -> Any:
    """Return PySpark's channel builder for the server: the token is in no URL, and ``localhost`` is always IPv4.

    PySpark sends a token without TLS only to a host called ``localhost``.
    """
    from pyspark.sql.connect.client import DefaultChannelBuilder

    class Loopback(DefaultChannelBuilder):
        """A channel to the address on which the server really listens."""

        @property
        def endpoint(self) -> str:
            """The IPv4 address: another program may listen on the IPv6 loopback."""
            return f"127.0.0.1:{server.port}"

    channel = Loopback(server.url)
    channel.set("token", server.token)
    return channel


def answered(server: SparkServer, seconds: float) -> str | None:
    """Return the server's Spark version; ``None`` if it does not answer in time or refuses the token."""
    import grpc
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

    session, user = str(uuid.uuid4()), base_pb2.UserContext(user_id="conduit-health")
    asked = base_pb2.AnalyzePlanRequest.SparkVersion()
    question = base_pb2.AnalyzePlanRequest(session_id=session, user_context=user, spark_version=asked)
    goodbye = base_pb2.ReleaseSessionRequest(session_id=session, user_context=user)
    try:
        with loopback_channel(server).toChannel() as channel:
            stub = base_pb2_grpc.SparkConnectServiceStub(channel)
            answer = stub.AnalyzePlan(question, timeout=seconds)
            stub.ReleaseSession(goodbye, timeout=seconds)
    except grpc.RpcError:
        return None
    return str(answer.spark_version.version)
