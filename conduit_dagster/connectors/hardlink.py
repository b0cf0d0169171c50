"""Hard links, with copies on file systems without them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from conduit_dagster import storage


def link(source: Path, into: Path) -> None:
    """Link a file under a second name; copy it durably if the file system has no hard links.

    Raises ``OSError``. Does not sync the new directory entry, and ``source`` must already be durable.
    """
    try:
        os.link(source, into)
    except OSError:
        shutil.copyfile(source, into)
        storage.sync(str(into))
