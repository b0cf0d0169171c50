"""A file source read step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions
from lab.kept import MemoryValues

MUCH = Limit(1_000_000, 100_000_000)
ENDLESS = {"unterminated-wait": "0s", "read-unterminated": "true"}
"""Settings for files whose last line never gets its line end."""


def text_of(record: Record) -> str:
    """Return the line of a record that was read."""
    assert isinstance(record.after, bytes)
    return record.after.decode()


class Reader:
    """A source and its position; each read is one step."""

    def __init__(self, root: Path, path: str = "app.log", kept: MemoryValues | None = None, **settings: str) -> None:
        self._make = lambda: FileSource(
            FileSourceSettings.model_validate({"path": path, **settings}),
            ConnectorContext("p", "in", str(root), Clock(7)),
        )
        self._kept = kept
        self.restart()
        self.position = self.source.initial()

    def restart(self) -> None:
        self.source = self._make()
        if self._kept is not None:
            self.source.attach_kept(self._kept.access)

    def step(self, limit: Limit = MUCH, drain: bool = False, n: int = 1) -> list[str]:
        end = self.source.latest(self.position, limit, self.source.horizon() if drain else None)
        lines = [text_of(record) for record in self.records(end, n)]
        self.position = end
        return lines

    def planned(self) -> tuple[Any, Block]:
        """Return the end of a step of everything, and its only block; the position stays unchanged."""
        end = self.source.latest(self.position, MUCH)
        [split] = self.source.split(self.position, end, 1)
        [block] = self.source.read(split, ReadOptions())
        assert isinstance(block, Block)
        return end, block

    def records(self, end: Any, n: int = 1, **options: Any) -> list[Any]:
        found: list[Any] = []
        for split in self.source.split(self.position, end, n):
            assert split.ordinal == len(found)
            for block in self.source.read(split, ReadOptions(**options)):
                assert isinstance(block, Block)
                found.extend(block.records)
        return found


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)
