"""Changes that other programs make to a file while a source reads it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

OLD, NEW = [f"old{i}" for i in range(5)], [f"new{i}" for i in range(9)]


def write(path: Path, lines: list[str]) -> None:
    """Write into the existing file, or a new one."""
    path.write_text("".join(f"{line}\n" for line in lines))


def rotate(log: Path) -> None:
    """Rotate like logrotate with ``create``."""
    log.rename(f"{log}.1")
    write(log, NEW)


def replace(log: Path) -> None:
    """Replace the file atomically, as an editor or a downloader does. Nothing of the old one remains."""
    write(log.with_name("new"), NEW)
    log.with_name("new").replace(log)


def overwrite(log: Path) -> None:
    """Write other lines into the same file."""
    write(log, NEW)


def copy_and_truncate(log: Path) -> None:
    """Rotate like logrotate with ``copytruncate``, with a writer that continues."""
    shutil.copy(log, f"{log}.1")
    write(log, NEW)


ZSTANDARD = b"\x28\xb5\x2f\xfd"
PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def pack(path: Path, suffix: str = ".gz") -> Path:
    """Compress a file like gzip does: the copy keeps its modification time, and the file is removed.

    With another suffix it becomes something that begins like a Zstandard file.
    """
    packed = path.with_name(path.name + suffix)
    packed.write_bytes(PACKERS.get(suffix, ZSTANDARD.__add__)(path.read_bytes()))
    shutil.copystat(path, packed)
    path.unlink()
    return packed
