"""A folder written by the ``file`` destination, read as one ordered stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"step=(\d+)-(?:(\d+)-)?([0-9a-f]+)")


class _Place(NamedTuple):
    """A delivery's place in the stream. Names of earlier versions have no skip, since there were no children."""

    step: int
    skip: int
    hash: str


def read_folder(path: Path) -> Iterator[bytes]:
    """Yield the lines with their ends, in stream order, with one line in memory.

    Sees the deliveries that are visible when the first line is read; other entries are left out. Raises ``OSError``.
    """
    for folder in _deliveries(path):
        for part in sorted(folder.glob("part-*")):
            with part.open("rb") as file:
                yield from file


def _deliveries(path: Path) -> list[Path]:
    placed = [(place, folder) for folder in path.iterdir() if (place := _place(folder.name)) is not None]
    return [folder for _, folder in sorted(placed)]


def _place(name: str) -> _Place | None:
    found = _NAME.fullmatch(name)
    return _Place(int(found[1]), int(found[2] or 0), found[3]) if found else None
