"""A small file system, and a limit on file sizes, for tests of full disks."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str, inodes: int = 1_000) -> Iterator[Path]:
    """Mount one at ``folder``; skip the test if that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"can't mount a small file system here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Limit the size of this process's files: a write beyond it fails with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def fill(disk: Path, leave: int) -> Path:
    """Create a file that takes all space but about ``leave`` bytes."""
    ballast, state = disk / "ballast", os.statvfs(disk)
    ballast.write_bytes(b"x" * (state.f_bavail * state.f_bsize - leave))
    return ballast
