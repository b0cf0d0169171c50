"""What a forked process does to be like one that was started."""

from __future__ import annotations

import os
import random
import runpy
import signal
import socket
import sys
import time
from dataclasses import dataclass

from conduit_dagster.warm.wire import Wanted, receive_go


@dataclass(frozen=True)
class Held:
    """What a child that was just forked shall become, and whom it asks before it does."""

    wanted: Wanted
    streams: list[int]
    connection: socket.socket


def become(held: Held) -> None:
    """Runs the module; returns or raises as it does. Its streams, folder and environment are the client's."""
    with held.connection as connection:
        connection.settimeout(None)
        # nothing runs that its client does not know of: one that gave up starts the same work elsewhere
        if not receive_go(connection):
            return
    wanted, streams = held.wanted, held.streams
    if wanted.own_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(wanted.environment)
    time.tzset()
    os.chdir(wanted.folder)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    _open_streams()
    # where `python -m` looks first
    sys.path[0] = wanted.folder
    sys.argv = [wanted.module, *wanted.words]
    runpy.run_module(wanted.module, run_name="__main__", alter_sys=True)


def _open_streams() -> None:
    """The parent's buffers belong to the parent."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
