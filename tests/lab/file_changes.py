"""What others do to a file that a source reads."""

from __future__ import annotations

import shutil
from pathlib import Path

OLD, NEW = [f"old{i}" for i in range(5)], [f"new{i}" for i in range(9)]


def write(path: Path, lines: list[str]) -> None:
    """Into the file that is there, or a new one."""
    path.write_text("".join(f"{line}\n" for line in lines))


def rotate(log: Path) -> None:
    """As logrotate with ``create``."""
    log.rename(f"{log}.1")
    write(log, NEW)


def replace(log: Path) -> None:
    """As an editor or a downloader puts a file into place at once. Of the old one nothing is left."""
    write(log.with_name("new"), NEW)
    log.with_name("new").replace(log)


def copy_and_truncate(log: Path) -> None:
    """As logrotate with ``copytruncate``, and a writer that goes on."""
    shutil.copy(log, f"{log}.1")
    write(log, NEW)
