"""Reading rows ``low`` to ``high`` of one Parquet file, block by block. Runs in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa

from conduit_dagster.connectors.columnar.documents import documents
from conduit_dagster.connectors.parquet.footer import open_planned
from conduit_dagster.connectors.parquet.position import ReadFile
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, ReadOptions, Rows

_ROWS = 65_536
"""Rows in a block that stays columns."""
_BYTES = 4 << 20
"""What a block weighs at most, as the file holds it."""


class Reader:
    """The rows of one split."""

    def __init__(self, file: ReadFile, detail: dict[str, Any], metadata: dict[str, str], keys: Sequence[str]) -> None:
        """``detail``: the split's own."""
        self.file, self._url, self._to = file, detail["url"], detail["to"]
        # a split that an earlier version planned does not say what its file looked like
        self._seen, self._row_bytes = detail.get("seen", []), detail["row_bytes"]
        self.metadata, self.keys = metadata, keys

    def blocks(self, options: ReadOptions) -> Iterator[Block]:
        """Blocks in order; columns where the plan takes rows."""
        at = self.file.done
        most = max(1, _BYTES // self._row_bytes)
        for batch in self._batches(min(_ROWS if options.rows else options.block_records, most, self._to - at)):
            made = _Made(self, batch, at)
            at += batch.num_rows
            if options.rows:
                like = Record(0, self.metadata)
                lazy = Rows(batch, like, made.all)
                yield Block(cast("list[Record]", lazy), made.boundary, again=made.again)
            else:
                yield Block(made.all(), made.boundary, again=made.again)

    def _batches(self, size: int) -> Iterator[Any]:
        """The rows of the range; row groups before it are not read, and the first one's rows before it are skipped."""
        with open_planned(self._url, self.file.mark, self._seen) as file:
            first, groups = self._groups(file.metadata)
            skip, left = self.file.done - first, self._to - self.file.done
            for batch in file.iter_batches(size, row_groups=groups, use_threads=False):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                piece = batch.slice(skip, left)
                skip, left = 0, left - piece.num_rows
                yield piece
                if not left:
                    return

    def _groups(self, metadata: Any) -> tuple[int, list[int]]:
        """How many rows lie before the first row group of the range, and the row groups."""
        begin, first, groups = 0, 0, list[int]()
        for number in range(metadata.num_row_groups):
            end = begin + metadata.row_group(number).num_rows
            if end > self.file.done and begin < self._to:
                first = first if groups else begin
                groups.append(number)
            begin = end
        return first, groups


class _Made:
    """The records of one block, made when they are asked for."""

    def __init__(self, reader: Reader, batch: Any, first: int) -> None:
        self._reader, self._batch, self._first = reader, batch, first

    def all(self) -> list[Record]:
        return self._records(self._batch, range(self._batch.num_rows))

    def again(self, places: Sequence[int]) -> list[Record]:
        return self._records(self._batch.take(pa.array(places, pa.int64())), places)

    def _records(self, batch: Any, places: Sequence[int]) -> list[Record]:
        file, metadata, keys = self._reader.file, self._reader.metadata, self._reader.keys
        prefix, first = f"{file.number}:{file.name}:", self._first + 1
        rows = zip(places, documents(batch), strict=True)
        if not keys:
            return [Record(f"{prefix}{first + i}", metadata, row) for i, row in rows]
        return [Record(f"{prefix}{first + i}", metadata, row, {key: row.get(key) for key in keys}) for i, row in rows]

    def boundary(self, i: int) -> Any:
        return msgspec.to_builtins(msgspec.structs.replace(self._reader.file, done=self._first + i + 1))
