"""A folder and its reader, whose finished files leave the position."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.file_reading import Reader
from lab.kept import MemoryValues, leave_at

WAITS = {"rotate-wait": "0s", "unterminated-wait": "0s"}
"""Settings with which a file counts as complete at once."""


class Inbox:
    """A folder and its reader, whose finished files leave the position at once."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, leaves_at: int = 1) -> None:
        leave_at(patch, leaves_at)
        self.folder, self.kept = root / "in", MemoryValues()
        self.folder.mkdir()
        self.reader = Reader(root, "in/", self.kept, **WAITS)
        self.others = 0

    def write(self, name: str, *lines: str) -> None:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def step(self) -> list[str]:
        return self.reader.step()

    def leave(self) -> None:
        """Read another file, so that files read before it leave the position."""
        self.others += 1
        self.write(f"z{self.others}", "other")
        assert self.step() == ["other"]

    @property
    def names(self) -> list[str]:
        return [file["name"] for file in self.reader.position["files"]]
