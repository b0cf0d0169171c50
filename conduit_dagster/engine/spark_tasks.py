"""What surrounds each task of a Spark job: the package's version, one row per task, the garbage collector, and files.

Nothing may refer to files that tasks write or miss where the driver and a worker have different ones.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from conduit_dagster import storage
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.spark.explain import lacks_our_code, version_differs

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
