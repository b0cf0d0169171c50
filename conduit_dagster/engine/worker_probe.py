"""What Spark's workers are and can do, for ``doctor``: a job of tasks that look for the driver's files."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.msgspec_warmup import learn

_HELD: Final = 0.2
"""Seconds that a task takes at least, so that no executor gets the tasks of another one."""


class WorkerReport(msgspec.Struct, frozen=True):
    """What a task saw of the machine that it ran on."""

    host: str
    python: str
    """Version of Python."""
    missing: list[str]
    """Folders that are not the driver's there."""
    refused: dict[str, str]
    """Folders in which it may not write, and the system's words."""


learn(WorkerReport)


def workers(jobs: Jobs, folders: Mapping[str, str]) -> Sequence[WorkerReport]:
    """Run two jobs with two tasks for each slot of the session, and return what they saw.

    ``folders``: names and URLs of folders; a file is created in each that is on a file system, and removed again.
    An executor that is busy or comes later runs none of the tasks. Raises the same as ``Jobs.each``, and ``OSError``.
    """
    with _probes(folders) as probes:
        # executors register one after the other: the first job may have found one alone
        rows = [row for _ in range(2) for row in jobs.each(2 * jobs.slots(), partial(_look, probes))]
    return [msgspec.msgpack.decode(row, type=WorkerReport) for row in rows]


@contextmanager
def _probes(folders: Mapping[str, str]) -> Generator[dict[str, str]]:
    probes: dict[str, str] = {}
    try:
        for name, url in folders.items():
            if (path := storage.local_path(url)) is not None:
                storage.make_folder(url)
                file = str(path / f"~doctor-{secrets.token_hex(8)}")
                storage.put_new(file, b"")
                probes[name] = file
        yield probes
    finally:
        for file in probes.values():
            storage.remove(file)


def _look(probes: Mapping[str, str], number: int) -> bytes:
    worker = WorkerReport(socket.gethostname(), platform.python_version(), [], {})
    for name, file in probes.items():
        try:
            os.lstat(file)
            own = f"{file}-{number}"
            storage.put_new(own, b"")
            storage.remove(own)
        except FileNotFoundError:
            worker.missing.append(name)
        except OSError as error:
            worker.refused[name] = str(error.strerror)
    time.sleep(_HELD)
    return msgspec.msgpack.encode(worker)
