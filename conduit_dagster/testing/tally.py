"""Counts that outlive processes: the size of a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Tally:
    """A number that only grows, seen alike by the driver and by all tasks. It survives ``kill -9``, not a power cut.

    For folders on a local disk of one machine. To start over, delete the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def count(self) -> int:
        """How many have been counted; 0 where there is no file."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def take(self, wanted: int, limit: int | None = None) -> int:
        """Counts as many of ``wanted`` as keep the total within ``limit``, and gives how many these were."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # the lock goes with the process: what a killed one has taken is in the file, or was not taken
            fcntl.flock(file, fcntl.LOCK_EX)
            left = wanted if limit is None else limit - os.fstat(file.fileno()).st_size
            granted = max(0, min(wanted, left))
            file.write(b"." * granted)
        return granted
