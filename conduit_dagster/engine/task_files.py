"""Files that tasks write or miss: where the driver and a worker have different ones, nothing may refer to them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from conduit_dagster import storage
from conduit_dagster.recovery.errors import ConduitError, TransientError

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
