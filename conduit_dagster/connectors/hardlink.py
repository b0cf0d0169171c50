"""A file under a second name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from conduit_dagster import storage


def link(source: Path, into: Path) -> None:
    """Link a file, without copying; on a file system without hard links, copy it, durable when this returns.

    Raises ``OSError``. The new name's entry is not synced, and ``source`` must be durable already.
    """
    try:
        os.link(source, into)
    except OSError:
        shutil.copyfile(source, into)
        storage.sync(str(into))
