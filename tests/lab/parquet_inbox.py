"""A folder of Parquet files, and a reader whose finished files leave its position on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conduit_dagster.connectors.parquet.source import ParquetSource, ParquetSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions
from lab.kept import MemoryValues, leave_at

NEVER = 10**9
ALL = Limit(10**9, 10**12)


class Reader:
    """A source whose finished files leave the position once they reach a number, with its position."""

    def __init__(self, root: Path, leaves_at: int, kept: MemoryValues | None) -> None:
        self.root, self.leaves_at, self.kept = root, leaves_at, kept
        self.restart()
        self.position: Any = self.source.initial()
        self.path = [self.position]
        """The positions that led to this one, from which a range may begin: none of what a return left behind."""
        self._paths = [self.path]

    def restart(self) -> None:
        self.horizon: Any = None
        context = ConnectorContext("p", "in", str(self.root), Clock(7), "exactly-once")
        self.source = ParquetSource(ParquetSourceSettings(path="in/"), context)
        if self.kept is not None:
            self.source.attach_kept(self.kept.access)

    def latest(self, limit: Limit = ALL) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            leave_at(patch, self.leaves_at)
            return json.loads(json.dumps(self.source.latest(self.position, limit, self.horizon)))

    def records(self, start: Any, end: Any) -> list[tuple[Any, Any, Any]]:
        """Return the documents of a range, their positions and their boundaries."""
        found: list[tuple[Any, Any, Any]] = []
        for split in self.source.split(start, end, 2):
            for block in self.source.read(split, ReadOptions(block_records=3)):
                assert isinstance(block, Block)
                found += [(r.after, r.position, block.boundary(i)) for i, r in enumerate(block.records)]
        return found

    def step(self, limit: Limit = ALL, cut: int | None = None) -> list[tuple[Any, Any]]:
        """Read one step, or up to its record ``cut``."""
        start, end = self.position, self.latest(limit)
        if end == start:
            return []
        self.source.verify(start, end)
        records = self.records(start, end)
        if cut is not None and cut < len(records):
            end = json.loads(json.dumps(self.source.within(start, end, records[cut][2])))
            records = records[: cut + 1]
        self.position = end
        self.path = [*self.path, end]
        self._paths.append(self.path)
        return [(after, position) for after, position, _ in records]

    def back(self, number: int) -> None:
        """Return to the position before the last ``number`` ones that were reached; of more, counted round."""
        self.path = self._paths[-1 - number % len(self._paths)]
        self.position = self.path[-1]

    @property
    def earlier(self) -> list[Any]:
        """All positions that were reached, in that order."""
        return [path[-1] for path in self._paths]

    @property
    def place(self) -> Any:
        return self.source.place(self.position)

    @property
    def names(self) -> list[str]:
        return [file["name"] for file in self.position["files"]]


class Inbox:
    """A folder whose files appear atomically."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "in"
        self.folder.mkdir()
        self.rows = 0
        self.versions: list[bytes] = []

    def put(self, name: str, rows: int) -> None:
        table = pa.table({"i": list(range(self.rows, self.rows + rows))})
        pq.write_table(table, self.folder / ".new", row_group_size=2)
        self.rows += rows
        self.versions.append((self.folder / ".new").read_bytes())
        (self.folder / ".new").replace(self.folder / name)

    def put_back(self, name: str, version: int) -> None:
        if self.versions:
            (self.folder / ".new").write_bytes(self.versions[version % len(self.versions)])
            (self.folder / ".new").replace(self.folder / name)


def values(records: list[tuple[Any, Any]]) -> list[int]:
    return [after["i"] for after, _ in records]
