"""Entries of folders that are durable: a crash may lose a file whose bytes alone are safe."""

from __future__ import annotations

import os
from pathlib import Path

from conduit_dagster.state import storage


def sync_entry(path: Path) -> None:
    """Syncs every folder that leads to ``path``, up to its mount point: any of them may be new.

    Raises ``OSError``. A folder further up that we may not read was not made by us; the walk ends there.
    """
    real = path.resolve()
    device = real.stat().st_dev
    for folder in real.parents:
        if folder.stat().st_dev != device or (folder != real.parent and not os.access(folder, os.R_OK)):
            return
        storage.sync(str(folder))
