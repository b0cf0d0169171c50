"""Asks a parent for a child."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from conduit_dagster.processes import is_alive
from conduit_dagster.warm.places import MODULES, socket_path
from conduit_dagster.warm.wire import Wanted, receive_answer, send_wanted

QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Threads of a numeric library would not survive the fork."""
_SECONDS = 60.0
_TICK = 0.05
_TRIES = 3


class NotWarmError(Exception):
    """There is no parent, or it gave no child: start a process in the usual way."""


class Child:
    """A process that a parent forked."""

    def __init__(self, pid: int, started: str, connection: socket.socket) -> None:
        self.pid, self.started, self._connection = pid, started, connection

    def wait(self) -> int:
        """Its exit code, as ``subprocess`` has them; 1 where its parent ended before it."""
        self._connection.settimeout(None)
        answer = receive_answer(self._connection)
        if answer is not None:
            return int(answer["exit"])
        while is_alive(self.pid, self.started):
            time.sleep(_TICK)
        return 1

    def terminate(self) -> None:
        """SIGTERM, if it still runs."""
        if is_alive(self.pid, self.started):
            os.kill(self.pid, signal.SIGTERM)

    def forget(self) -> None:
        """Nobody will wait for it."""
        self._connection.close()


def spawn(role: str, wanted: Wanted, streams: list[int], python: str = sys.executable) -> Child:
    """A child of the role's parent, which is started where there is none.

    Raises :class:`NotWarmError` when a minute was not enough, where this system can't, and where its user does not
    want it (``CONDUIT_WARM_SECONDS=0``).
    """
    if sys.platform != "linux":
        raise NotWarmError("forking is safe on Linux only")
    if wanted.environment.get("CONDUIT_WARM_SECONDS") == "0":
        raise NotWarmError("CONDUIT_WARM_SECONDS is 0")
    deadline = time.monotonic() + _SECONDS
    try:
        path = socket_path(role, python, wanted.environment.get("PYTHONPATH", ""))
        for _ in range(_TRIES):
            child = _asked(_connected(role, path, python, wanted.environment, deadline), wanted, streams, deadline)
            if child is not None:
                return child
    except (OSError, ValueError) as error:
        raise NotWarmError(str(error)) from error
    raise NotWarmError("its parent gave no answer")


def _asked(connection: socket.socket, wanted: Wanted, streams: list[int], deadline: float) -> Child | None:
    """None where the parent's code has changed, or it ended just now."""
    try:
        connection.settimeout(max(1.0, deadline - time.monotonic()))
        send_wanted(connection, wanted, streams)
        answer = receive_answer(connection)
    except (BrokenPipeError, ConnectionResetError):
        answer = None
    if answer is not None:
        return Child(answer["pid"], answer["started"], connection)
    connection.close()
    return None


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
        # of several that are started one serves, and the others end at once
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
