"""File locks, which the operating system releases however their process ends. Standard library only."""

from __future__ import annotations

import fcntl
from typing import IO, Any


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Try to take the lock; return whether it is now held.

    It is held until the file is closed, including its last copy in a forked process.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
