"""Where the tests keep their files: in memory if there is room. Most of what they wait for on a disk is fsync."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

_MEMORY = Path("/dev/shm")
_FILES, _WHOLE = 8 << 30, 16 << 30
"""Room for the files, of which three gigabytes are needed, and for the processes of three workers as well."""


def keep_in_memory() -> None:
    """For this process and all that it starts, unless ``TMPDIR`` is set.

    A process that is killed loses as little of what it has written as on a disk.
    """
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


def _has_room() -> bool:
    if not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return False
    # containers may have a small one, in which no program can be started
    may_run = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    return may_run and shutil.disk_usage(_MEMORY).free > _FILES and psutil.virtual_memory().available > _WHOLE
