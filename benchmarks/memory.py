"""Peak memory of this process and everything it started, sampled while something runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Peak:
    """What was seen at most, in MB."""

    python = 0.0
    total = 0.0


@contextmanager
def watching(every: float = 0.25) -> Generator[Peak]:
    """Samples resident memory until the block ends. Shared pages count in each process."""
    peak, ended = Peak(), threading.Event()

    def watch() -> None:
        while not ended.wait(every):
            _sample(peak)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _sample(peak: Peak) -> None:
    sizes = [(_name(pid), _resident(pid)) for pid in _tree(os.getpid())]
    peak.total = max(peak.total, sum(size for _, size in sizes))
    peak.python = max(peak.python, sum(size for name, size in sizes if name.startswith("python")))


def _tree(root: int) -> list[int]:
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6
    except (OSError, IndexError):
        return 0.0
