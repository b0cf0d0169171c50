"""What a forked process does to be like one that was started."""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
import time

from conduit_dagster.warm.wire import Wanted

_USUAL = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)


def become(wanted: Wanted, streams: list[int]) -> None:
    """Runs the module; returns or raises as it does. Its streams, folder and environment are the client's."""
    if wanted.own_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(wanted.environment)
    time.tzset()
    os.chdir(wanted.folder)
    for one in _USUAL:
        signal.signal(one, signal.SIG_DFL)
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
