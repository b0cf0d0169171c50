"""What a parent imports, and its messages with a client over a Unix socket. Standard library only."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER_TAG = ".dagster/conduit_folder"
"""Tag of a pipeline's runs in Dagster: the folder in which its code location was loaded, where relative paths start."""

MODULES = {
    "runs": ("dagster._cli", "conduit_dagster.definitions", "pyspark.sql.connect.session"),
    "workers": (
        "pyspark.worker",
        "conduit_dagster.spark.worker_daemon",
        "conduit_dagster.engine.stage",
        "pandas",
    ),
}
"""Modules that each role's parent imports: importing them must not start a thread or open a connection."""


def preload(modules: Iterable[str]) -> None:
    """Import modules and freeze them: their memory is shared with all forks, and a collection would copy it."""
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()


def socket_path(role: str, python: str, path: str) -> Path:
    """Return the socket's path, one per interpreter and search path. Raises ``OSError`` if others could reach it."""
    folder = Path(tempfile.gettempdir()) / f"conduit-dagster-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    key = hashlib.sha256("\0".join([role, python, path]).encode()).hexdigest()[:12]
    return folder / f"{role}-{key}"


_HEAD = struct.Struct("!I")
_STREAMS = 3
_GO = b"+"


@dataclass(frozen=True)
class ForkRequest:
    """A Python module to run as a process: ``python -m MODULE WORDS``, with its folder and complete environment."""

    module: str
    words: list[str]
    folder: str
    environment: dict[str, str]
    own_session: bool = False
    """Whether it leaves the client's terminal and process group."""


def send_request(connection: socket.socket, request: ForkRequest, streams: list[int]) -> None:
    """Send a request, with the three file descriptors that become the child's standard streams."""
    data = json.dumps(asdict(request)).encode()
    socket.send_fds(connection, [_HEAD.pack(len(data))], streams)
    connection.sendall(data)


def receive_request(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """Receive a request from :func:`send_request`. Raises ``OSError``, ``ValueError`` or ``TypeError`` for others."""
    head, streams, _, _ = socket.recv_fds(connection, _HEAD.size, _STREAMS)
    try:
        if len(head) != _HEAD.size or len(streams) != _STREAMS:
            raise ValueError("not a request")
        return ForkRequest(**json.loads(_exactly(connection, _HEAD.unpack(head)[0]))), streams
    except (OSError, ValueError, TypeError):
        close_streams(streams)
        raise


def close_streams(streams: Iterable[int]) -> None:
    """Close received descriptors that this process does not use."""
    for stream in streams:
        os.close(stream)


def send_answer(connection: socket.socket, **answer: Any) -> None:
    """Send one line of JSON."""
    connection.sendall(json.dumps(answer).encode() + b"\n")


def receive_answer(connection: socket.socket) -> dict[str, Any] | None:
    """Receive the next line; None at the connection's end. Raises ``OSError``, for example on a timeout."""
    line = b""
    while not line.endswith(b"\n"):
        # a byte at a time: the next bytes belong to the next answer, and both are short
        byte = connection.recv(1)
        if not byte:
            return None
        line += byte
    return json.loads(line)


def send_go(connection: socket.socket) -> None:
    """Let a held child begin."""
    connection.sendall(_GO)


def receive_go(connection: socket.socket) -> bool:
    """Wait for :func:`send_go`; return False if the connection ends instead."""
    try:
        return connection.recv(len(_GO)) == _GO
    except OSError:
        return False


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ValueError("half a request")
        data += part
    return data
