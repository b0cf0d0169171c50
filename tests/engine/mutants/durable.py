"""What has been synced, without a power cut: every file and folder as of its last fsync."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine.mutants.verdicts import require


class Synced:
    """Records what each fsync of this process saw."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        self._fsync = os.fsync

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While inside."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._synced)
            yield

    def _synced(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._fsync(descriptor)
        self._seen[found.st_ino] = (found.st_mtime_ns, found.st_size)

    def require(self, *paths: Path) -> None:
        """Return whether each of them was synced after its last change."""
        assert paths
        for path in paths:
            now = path.stat()
            durable = self._seen.get(now.st_ino) == (now.st_mtime_ns, now.st_size)
            require(durable, f"not durable: {path.name}")


def below(folder: Path) -> list[Path]:
    """The folder and all in it."""
    return [folder, *sorted(folder.rglob("*"))]
