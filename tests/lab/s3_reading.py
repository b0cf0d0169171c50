"""A reader of the ``s3`` source without an engine."""

from __future__ import annotations

from typing import Any

from conduit_dagster.connectors.s3.source import S3Source
from conduit_dagster.record import Record
from conduit_dagster.sdk import KeptValues, Limit, Position, ReadOptions

from .s3_lab import S3Lab

ALL = Limit(10**6, 10**12)


class Reader:
    """Reads on from its last position, each time as another process would."""

    def __init__(self, s3: S3Lab, **settings: str) -> None:
        self._s3, self._settings = s3, settings
        self._kept = dict[str, bytes]()
        self.at: Position = s3.source().initial()

    def source(self) -> S3Source:
        """Return a source with the values that were kept."""
        source = self._s3.source(**self._settings)
        source.attach_kept(KeptValues(self._kept.get, self._put))
        return source

    def _put(self, value: bytes) -> str:
        name = f"{len(self._kept):064x}"
        self._kept[name] = value
        return name

    def step(self, limit: Limit = ALL, n: int = 1) -> list[Record]:
        """Read a step; return its records."""
        start, self.at = self.at, self.source().latest(self.at, limit)
        return self.between(start, self.at, n)

    def between(self, start: Position, end: Position, n: int = 1) -> list[Record]:
        """Return the records of a range, cut into splits."""
        splits = self.source().split(start, end, n)
        counted = [split.records or 0 for split in splits]
        assert [split.ordinal for split in splits] == [sum(counted[:place]) for place in range(len(splits))]
        blocks = [block for split in splits for block in self.source().read(split, ReadOptions())]
        for block in blocks:
            assert block.again is not None and block.again(range(len(block.records))) == block.records
        return [record for block in blocks for record in block.records]

    def cut(self, start: Position, place: int) -> Position:
        """Return the position after this record of the step that ended last."""
        source = self.source()
        [split] = source.split(start, self.at, 1)
        boundaries = [
            block.boundary(i) for block in source.read(split, ReadOptions()) for i in range(len(block.records))
        ]
        return source.within(start, self.at, boundaries[place])


def told(records: list[Record]) -> list[tuple[str, str, Any]]:
    """Return operation, last part of the key, and content of each record."""
    found: list[Any] = records
    return [(record.operation, record.key.decode().rpartition("/")[2], record.after) for record in found]
