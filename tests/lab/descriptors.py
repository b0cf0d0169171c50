"""Open files of this process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_files(start: Path) -> int:
    """Return how many descriptors this process has of files and folders whose path starts like this one, also of
    removed ones.

    Others come and go with the garbage of other tests.
    """
    return sum(name.startswith(str(start)) for name in _names())


def _names() -> list[str]:
    names: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(str(descriptor.readlink()))
    return names
