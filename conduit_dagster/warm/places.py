"""Where a parent listens: a folder of the user's alone. Standard library only."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

MODULES = {
    "runs": ("dagster._cli", "conduit_dagster.definitions", "pyspark.sql.connect.session"),
    "workers": ("pyspark.worker", "conduit_dagster.spark.worker_daemon", "conduit_dagster.engine.stage", "pandas"),
}
"""What each role's parent imports: nothing here may start a thread or open a connection."""


def socket_path(role: str, python: str, path: str) -> Path:
    """One per interpreter and search path. Raises ``OSError`` where others could reach it."""
    folder = Path(tempfile.gettempdir()) / f"conduit-dagster-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    key = hashlib.sha256("\0".join([role, python, path]).encode()).hexdigest()[:12]
    return folder / f"{role}-{key}"
