"""The process that starts a shared server and stops it when it is idle; and a client's health check of a server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from conduit_dagster.processes import end, started_at
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.server_files import ServerFiles, SparkServer


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
    # gRPC would ask a proxy named by http_proxy or https_proxy for this machine's own address
    channel.setChannelOption("grpc.enable_http_proxy", 0)
    return channel


def answered(server: SparkServer, seconds: float) -> str | None:
    """Return the server's Spark version, by a real call; ``None`` if it is too late, or the token is refused."""
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


_TICK = 1.0
_PATIENCE = 10.0
_MOST_LOG = 20_000_000


class ServerMonitor:
    """Monitor of one server until its end."""

    def __init__(self, files: ServerFiles, server: SparkServer, idle: float) -> None:
        self._files, self._server, self._idle = files, server, idle
        self._used = time.monotonic()
        self._is_leaving = False

    def leave(self) -> None:
        """Stop the server as soon as it has no sessions."""
        self._is_leaving = True

    def run(self) -> None:
        """Watch the server until it ends, by itself, because it was idle, or because this process should leave."""
        while self._server.is_alive():
            self._check()
            time.sleep(_TICK)
        self._files.forget(self._server)

    def _check(self) -> None:
        _cut(self._files.log)
        now = time.monotonic()
        if not self._files.folder.is_dir():
            # the project no longer exists
            end(self._server.pid, self._server.started, _PATIENCE)
        elif self._files.sessions():
            self._used = now
        elif self._is_leaving or now - self._used >= self._idle:
            self._end_idle()

    def _end_idle(self) -> None:
        """Stop the idle server under the lock, so that no session is opened on a server that is ending."""
        try:
            with self._files.locked(0):
                if not self._files.sessions():
                    end(self._server.pid, self._server.started, _PATIENCE)
                    self._files.forget(self._server)
        except TransientError:
            # another process holds the lock and wants the server
            self._used = time.monotonic()


def _cut(log: Path) -> None:
    """Truncate a long log after copying it; the server appends, so that its next line goes to the beginning."""
    try:
        if log.stat().st_size > _MOST_LOG:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)
    except OSError:
        pass


def _launched(files: ServerFiles, plan: dict[str, Any]) -> SparkServer:
    """Start the server in its own process session, so that Ctrl-C in a terminal does not reach it."""
    with files.log.open("ab") as log:
        process = subprocess.Popen(
            plan["command"], cwd=files.folder, env=plan["env"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    _reaped.append(process)
    return SparkServer(
        pid=process.pid, started=started_at(process.pid) or "", since=time.time(), **plan["server"], **_me()
    )


def _recorded(files: ServerFiles, server: SparkServer) -> SparkServer:
    """Store the record of a launched server; end one whose record can't be stored: nobody would ever find it."""
    try:
        files.write(server)
    except OSError:
        end(server.pid, server.started, _PATIENCE)
        raise
    return server


def _adopted(files: ServerFiles) -> SparkServer | None:
    server = files.read()
    if server is None:
        return None
    adopted = replace(server, **_me())
    files.write(adopted)
    return adopted


def _me() -> dict[str, Any]:
    return {"keeper": os.getpid(), "keeper_started": started_at(os.getpid()) or ""}


# a zombie counts as ended, so it need not be waited for
_reaped: list[subprocess.Popen[bytes]] = []


def main() -> None:
    """Run the monitor of the server that the plan on stdin describes.

    Its exit code is the ``errno`` if the server's record could not be written; a server that it launched has ended.
    """
    plan = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    files = ServerFiles(Path(plan["home"]))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below `nohup` the server would ignore it, by which it is ended
    try:
        server = _adopted(files) if plan["adopt"] else _recorded(files, _launched(files, plan))
    except OSError as error:
        sys.exit(error.errno)
    if server is not None:
        monitor = ServerMonitor(files, server, plan["idle"])
        # sent to all processes of a service at once: pipelines still finish a step on the server
        signal.signal(signal.SIGTERM, lambda *_: monitor.leave())
        monitor.run()


if __name__ == "__main__":
    main()
