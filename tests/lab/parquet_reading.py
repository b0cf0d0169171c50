"""A ``parquet`` source over a test's folder, files for it, and what it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster.connectors.parquet.source import ParquetSource, ParquetSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import ConnectorContext, Position, ReadOptions, Rows


def make(root: Path, path: str = "in", **more: str) -> ParquetSource:
    """A source that reads ``ROOT/in``."""
    context = ConnectorContext("p", "in", str(root), Clock(7), "exactly-once")
    return ParquetSource(ParquetSourceSettings.model_validate({"path": path, **more}), context)


def write(path: Path, numbers: range, groups: int = 1000) -> None:
    """A file of documents ``{"i": n}``."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"i": list(numbers)}), path, row_group_size=groups)


def read(source: ParquetSource, start: Position, end: Position, n: int = 1, rows: bool = False) -> list[Any]:
    """The documents of a range."""
    options = ReadOptions(rows=rows)
    blocks = [block for split in source.split(start, end, n) for block in source.read(split, options)]
    assert all(isinstance(block.records, Rows) is rows for block in blocks)
    return [record.after for block in blocks for record in block.records]


def numbers(documents: list[Any]) -> list[int]:
    return [document["i"] for document in documents]
