"""What surrounds each task of a Spark job: the package's version, one row per task, the garbage collector, and files.

Nothing may refer to files that tasks write or miss where the driver and a worker have different ones; ``doctor`` has
tasks look for the driver's.
"""

from __future__ import annotations

import gc
import os
import pickle
import platform
import secrets
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conduit_dagster import storage
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.spark.explain import lacks_our_code, version_differs

if TYPE_CHECKING:
    from conduit_dagster.engine.run_jobs import Jobs

Task = Callable[[int], bytes]
"""What a task does with its number; the result is a row for the driver."""
ROW_SCHEMA: Final = "result binary"


def _installed() -> str:
    try:
        return version("conduit-dagster")
    except PackageNotFoundError:
        return ""


# at import, which the parent of Spark's workers does for all of them
PACKAGE_VERSION: Final = _installed()
"""The installed version; empty for a checkout that is only on Python's path."""


def run_tasks(expected: str, task: bytes, batches: Iterator[Any]) -> Iterator[Any]:
    """Run a task for each number, and yield its row: the function for a job's ``mapInArrow``.

    ``task``: the pickled :data:`Task`, which only the same version can load. Raises ``FatalError``
    (``spark.version_differs``) where another version than ``expected`` is installed: workers read what the driver
    plans, and it publishes what they stage.
    """
    import pyarrow as pa

    if PACKAGE_VERSION and expected and expected != PACKAGE_VERSION:
        raise version_differs(f"conduit-dagster {PACKAGE_VERSION}", expected)
    run = _loaded(task)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pydict({"result": pa.array([run(int(number))], pa.binary())})


def _loaded(task: bytes) -> Task:
    """Return the task. Raises ``FatalError`` (``spark.version_differs``) if its code is not this package's."""
    try:
        return pickle.loads(task)
    except (ImportError, AttributeError, TypeError) as error:
        # a class with other fields; the package of an author, or one that is not installed, is another matter
        if isinstance(error, TypeError) or lacks_our_code(str(error)):
            told = f"another conduit-dagster ({type(error).__name__}: {error})"
            raise version_differs(told, "one that needs it") from error
        raise


@contextmanager
def quiet_collector() -> Generator[None]:
    """Disable garbage collection in the ``with`` block, or in a function. For tasks, whose records form no cycles."""
    # a block takes about a third less time without it
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _keep_imports()


@cache
def _keep_imports() -> None:
    """Exempt everything imported so far from garbage collection, after the process's first task.

    PySpark collects after every task, and would traverse the modules of numpy, pandas and pyarrow each time.
    """
    gc.collect()
    gc.freeze()


_MISSING = ("file.missing", "log.missing")
SHARE = (
    "let this machine and every worker have that folder in common: mount it there (the mount may be missing on one "
    "worker only), or set state.staging, state.log and the paths of connectors to a folder that all share"
)
"""What to do where a worker has other files than the driver."""


def require_seen(host: str, urls: Iterable[str]) -> None:
    """Require that files which a task on ``host`` has written are there for the driver.

    Else they would be files of that machine's own disk. Objects of a store are the same everywhere. Raises
    ``TransientError`` (``spark.not_shared``).
    """
    for url in urls:
        path = storage.local_path(url)
        if path is not None and not os.path.lexists(path):
            raise _not_shared(f"a task on {host} has written a file that is not there on this machine", str(path))


def seen_here(error: ConduitError, host: str) -> ConduitError:
    """Return the error of a task on ``host``: ``spark.not_shared`` if it misses a file that the driver has."""
    path = storage.local_path(error.place) if error.place and error.code in _MISSING else None
    if path is None or not path.is_absolute() or not path.exists():
        return error
    return _not_shared(f"a task on {host} can't find a file that is there on this machine", str(path), error.node)


def _not_shared(message: str, place: str, node: str | None = None) -> TransientError:
    return TransientError(message, code="spark.not_shared", place=place, fix=SHARE, node=node)


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
