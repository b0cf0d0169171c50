"""Memory and CPU time of this process and all its descendants. A page shared by several of them counts once."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """In MB."""

    python: float
    """Memory of all Python processes."""
    total: float
    """Including the Java process."""


class Peak:
    """Maximum of the samples, in MB."""

    python = 0.0
    total = 0.0

    def see(self, seen: Memory) -> None:
        """Add a sample."""
        self.python, self.total = max(self.python, seen.python), max(self.total, seen.total)

    def as_json(self) -> dict[str, int]:
        """Return whole MB."""
        return {"python_mb": round(self.python), "total_mb": round(self.total)}


@contextmanager
def watching(peak: Peak, every: float = 0.25) -> Generator[None]:
    """Sample until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every):
            peak.see(memory())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def memory() -> Memory:
    """Return the current memory. A PostgreSQL server started from here is left out."""
    names = {pid: _name(pid) for pid in _tree(os.getpid())}
    python = sum(proportional_of(pid) for pid, name in names.items() if name.startswith("python"))
    # Java shares no pages with the others, and traversing all of its own takes long
    rest = sum(resident_of(pid) for pid, name in names.items() if not name.startswith(("python", "postgres")))
    return Memory(python, python + rest)


def cpu_seconds(without: str = "") -> float:
    """Return the CPU time used so far, on all cores, including processes that have ended and were waited for.

    ``without``: name prefixes of processes that do not count.
    """
    return sum(cpu_seconds_of(pid) for pid in _tree(os.getpid()) if not without or not _name(pid).startswith(without))


def cpu_seconds_of(pid: int) -> float:
    """Used so far by one process, and by its children that have ended."""
    return sum(map(int, _stat(Path(f"/proc/{pid}"))[11:15])) / _TICKS


def machine_cpu_seconds() -> float:
    """Return the machine's non-idle CPU seconds since boot; servers left running count too."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / _TICKS


def _tree(root: int) -> list[int]:
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def _parent(path: Path) -> int:
    fields = _stat(path)
    return int(fields[1]) if fields else 0


def _stat(path: Path) -> list[str]:
    """Return the fields after the name; empty for a process that has just ended."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def proportional_of(pid: int) -> float:
    """Return the memory of one process in MB, counting 1/n of pages shared by n processes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def resident_of(pid: int) -> float:
    """Return the resident memory of one process in MB, shared pages in full; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6
    except (OSError, IndexError):
        return 0.0
