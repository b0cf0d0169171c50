"""Whether a server answers: a real call, with a deadline and with its token."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conduit_dagster.spark.server_files import Server


def loopback_channel(server: Server) -> Any:
    """PySpark's channel builder for the server: the token is in no URL, and ``localhost`` is always IPv4.

    A host called ``localhost`` is what makes PySpark send a token without TLS.
    """
    from pyspark.sql.connect.client import DefaultChannelBuilder

    class Loopback(DefaultChannelBuilder):
        """Where the server really listens."""

        @property
        def endpoint(self) -> str:
            """Somebody else may listen on the IPv6 loopback."""
            return f"127.0.0.1:{server.port}"

    channel = Loopback(server.url)
    channel.set("token", server.token)
    return channel


def answered(server: Server, seconds: float) -> str | None:
    """The version of Spark that the server tells, ``None`` if it does not answer in time or refuses the token."""
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
