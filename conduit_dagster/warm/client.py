"""Client that requests a forked child from a parent."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from conduit_dagster.processes import wait_for_end
from conduit_dagster.warm.protocol import MODULES, ForkRequest, receive_answer, send_go, send_request, socket_path

QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The threads of a numeric library would not survive the fork."""
_TICK = 0.05
_TRIES = 3


class NotWarmError(Exception):
    """Raised if no parent provides a child: start a process in the usual way."""


class ForkedProcess:
    """A process that a parent forked. It is held until :meth:`begin`, and ends if that never comes.

    A context manager: leaving it closes the connection. A child that has begun keeps running.
    """

    def __init__(self, process: dict[str, Any], connection: socket.socket) -> None:
        self.process, self._connection = process, connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def begin(self) -> None:
        """Let the child begin. Raises :class:`NotWarmError` if it has ended, without having begun."""
        try:
            send_go(self._connection)
        except OSError as error:
            raise NotWarmError(str(error)) from error

    def wait(self) -> int:
        """Return its exit code, as in ``subprocess``; 1 if its parent ended before it."""
        self._connection.settimeout(None)
        answer = receive_answer(self._connection)
        if answer is not None:
            return int(answer["exit"])
        wait_for_end(self.process)
        return 1


def spawn(
    role: str, request: ForkRequest, streams: list[int], python: str = sys.executable, seconds: float = 60.0
) -> ForkedProcess:
    """Fork a child of the role's parent, and hold it; start the parent if none is running.

    Raises :class:`NotWarmError` if ``seconds`` were not enough, if this system does not support it, or if its user has
    disabled it (``CONDUIT_WARM_SECONDS=0``).
    """
    if (reason := _unsupported(request.environment)) is not None:
        raise NotWarmError(reason)
    deadline = time.monotonic() + seconds
    try:
        path = socket_path(role, python, request.environment.get("PYTHONPATH", ""))
        for _ in range(_TRIES):
            child = _asked(_connected(role, path, python, request.environment, deadline), request, streams, deadline)
            if child is not None:
                return child
    except (OSError, ValueError) as error:
        raise NotWarmError(str(error)) from error
    raise NotWarmError("its parent did not answer")


def prepare(role: str, environment: dict[str, str], python: str = sys.executable) -> None:
    """Start the role's parent if none is running, without waiting: a :func:`spawn` will follow. Never raises."""
    if _unsupported(environment) is not None:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        path = socket_path(role, python, environment.get("PYTHONPATH", ""))
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            _start(role, path, python, environment)


def _unsupported(environment: dict[str, str]) -> str | None:
    if sys.platform != "linux":
        return "forking is safe on Linux only"
    return "CONDUIT_WARM_SECONDS is 0" if environment.get("CONDUIT_WARM_SECONDS") == "0" else None


def _asked(
    connection: socket.socket, request: ForkRequest, streams: list[int], deadline: float
) -> ForkedProcess | None:
    """Return the held child; None if the parent's code has changed, or if it has just ended."""
    answer = None
    try:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        send_request(connection, request, streams)
        answer = receive_answer(connection)
    except (BrokenPipeError, ConnectionResetError):
        pass  # treated like no answer
    finally:
        if answer is None:
            connection.close()
    return None if answer is None else ForkedProcess(answer["process"], connection)


def _connected(role: str, path: Path, python: str, environment: dict[str, str], deadline: float) -> socket.socket:
    parent: subprocess.Popen[bytes] | None = None
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
        else:
            return connection
        # if several are started, one serves and the others end at once
        if parent is None:
            parent = _start(role, path, python, environment)
        elif parent.poll():
            raise NotWarmError(f"its parent does not start: see {path.with_suffix('.log')}")
        if time.monotonic() > deadline:
            raise NotWarmError("its parent does not come up")
        time.sleep(_TICK)


def _start(role: str, path: Path, python: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [python, "-m", "conduit_dagster.warm.parent", str(path), *MODULES[role]]
    with path.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd="/",
            env={**environment, **QUIET},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
