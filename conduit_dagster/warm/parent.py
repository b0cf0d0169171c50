"""The process that others are forked from: ``python -m conduit_dagster.warm.parent SOCKET MODULE...``."""

from __future__ import annotations

import os
import random
import runpy
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from conduit_dagster.processes import identity, try_lock
from conduit_dagster.warm.protocol import ForkRequest, close_streams, preload, receive_go, receive_request, send_answer


@dataclass(frozen=True)
class ForkedChild:
    """Role of a newly forked child, and the connection that lets it begin."""

    request: ForkRequest
    streams: list[int]
    connection: socket.socket


def become(held: ForkedChild) -> None:
    """Run the module; return or raise as it does. Streams, folder and environment are the client's."""
    with held.connection as connection:
        connection.settimeout(None)
        # nothing runs without its client's knowledge: a client that gave up starts the same work elsewhere
        if not receive_go(connection):
            return
    request, streams = held.request, held.streams
    if request.own_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    os.chdir(request.folder)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    _open_streams()
    # where `python -m` looks first
    sys.path[0] = request.folder
    sys.argv = [request.module, *request.words]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def _open_streams() -> None:
    """Reopen the standard streams: the buffers belong to the parent."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")


_IDLE_SECONDS = float(os.environ.get("CONDUIT_WARM_SECONDS", "300"))
_LOOK_SECONDS = 5.0
_REQUEST_SECONDS = 5.0


class Parent:
    """Serves one client after the other, and reports the exit of children to clients that are still connected."""

    def __init__(self, path: Path, listener: socket.socket) -> None:
        self._path, self._listener = path, listener
        self._inode = path.stat().st_ino
        self._code = _code()
        self._children: dict[int, socket.socket] = {}
        self._busy_at = time.monotonic()
        # an exiting child wakes the loop
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)

    def serve(self) -> ForkedChild | None:
        """Return None at the end; in a forked child, its role.

        The child abandons this stack, and with it all connections but its own.
        """
        while self._is_needed():
            readable, _, _ = select.select([self._listener, self._woken], [], [], _LOOK_SECONDS)
            if self._woken in readable:
                self._woken.recv(4096)
                self._reap()
            if self._listener in readable and (found := self._answer()):
                signal.set_wakeup_fd(-1)
                return found
        return None

    def close(self) -> None:
        """Stop accepting clients. Its children keep running."""
        if not self._is_replaced():
            self._path.unlink(missing_ok=True)

    def _is_needed(self) -> bool:
        if self._children:
            self._busy_at = time.monotonic()
        return not self._is_replaced() and time.monotonic() - self._busy_at < _IDLE_SECONDS

    def _is_replaced(self) -> bool:
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def _answer(self) -> ForkedChild | None:
        connection, _ = self._listener.accept()
        self._busy_at = time.monotonic()
        try:
            connection.settimeout(_REQUEST_SECONDS)
            request, streams = receive_request(connection)
        except (OSError, ValueError, TypeError):
            connection.close()
            return None
        if self._is_stale():
            # never run code that differs from its file: the client starts another parent
            self._path.unlink(missing_ok=True)
            close_streams(streams)
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            return ForkedChild(request, streams, connection)
        close_streams(streams)
        self._children[pid] = connection
        self._tell(connection, process=identity(pid))
        return None

    def _is_stale(self) -> bool:
        before, self._code = self._code, _code()
        # a module imported since the last check is new, not changed
        return any(self._code.get(name) != changed for name, changed in before.items())

    def _reap(self) -> None:
        for pid, connection in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._tell(connection, exit=os.waitstatus_to_exitcode(status))
                self._children.pop(pid).close()

    @staticmethod
    def _tell(connection: socket.socket, **answer: object) -> None:
        try:
            send_answer(connection, **answer)
        except OSError:
            pass  # it no longer listens


def _code() -> dict[str, int]:
    """Return the modification time of each imported file."""
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {name: _changed_at(name) for name in names if name}


def _changed_at(name: str) -> int:
    try:
        return os.stat(name).st_mtime_ns  # noqa: PTH116 two thousand of them, before each child
    except OSError:
        return 0


def _serve(path: Path, modules: list[str]) -> ForkedChild | None:
    with path.with_suffix(".lock").open("ab") as lock:
        if not try_lock(lock):
            return None  # if two are started at the same moment, one serves
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(64)
            preload(modules)
            parent = Parent(path, listener)
            found = parent.serve()
            if found is None:
                parent.close()
            return found


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    held = _serve(Path(sys.argv[1]), sys.argv[2:])
    if held is not None:
        become(held)
