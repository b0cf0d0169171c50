"""Hard links, with copies where the file system has none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from conduit_dagster import storage


def link(source: Path, into: Path) -> None:
    """Link a file under a second name; where the file system has no hard links, copy it durably.

    Raises ``OSError``. Does not sync the new directory entry, and ``source`` must be durable already.
    """
    try:
        os.link(source, into)
    except OSError:
        shutil.copyfile(source, into)
        storage.sync(str(into))
