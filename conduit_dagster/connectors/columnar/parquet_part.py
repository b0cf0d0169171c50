"""One Parquet file of a task."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster.connectors.columnar.fitting import Table
from conduit_dagster.sdk import NewPart, Part, WriterTask
from conduit_dagster.state.sink import Sink

ROW_GROUP_BYTES: Final = 16 << 20
"""A row group ends after the record that brings it to this weight."""


class ParquetPart:
    """A new Parquet file. The same rows give the same bytes, in whatever blocks they came.

    Recovery stages a lost part again and compares digests, so row groups are cut by the rows alone. Another version of
    pyarrow may give other bytes.
    """

    def __init__(self, task: WriterTask, compression: str = "zstd") -> None:
        self._part = NewPart(task, "parquet")
        self._compression = compression
        self._file: Any = None
        self._waiting: list[Table] = []
        self._bytes = 0
        self._records = 0

    def add(self, table: Table, sizes: Any) -> None:
        """Appends rows; ``sizes`` say what each one weighs: the length of its JSON, or what Arrow needs for it."""
        self._records += table.num_rows
        upto, start = np.cumsum(sizes), 0
        while start < table.num_rows:
            before = int(upto[start - 1]) if start else 0
            end = int(np.searchsorted(upto, before + ROW_GROUP_BYTES - self._bytes)) + 1
            piece = table.slice(start, end - start)
            start += piece.num_rows
            self._waiting.append(piece)
            self._bytes += int(upto[start - 1]) - before
            if self._bytes >= ROW_GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        # one chunk per column: where pages end must not depend on the blocks
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._bytes = [], 0
        if self._file is None:
            # not ARROW:schema: the file is to be read as the table's log says, by whatever reader
            self._file = pq.ParquetWriter(
                Sink(self._part), rows.schema, compression=self._compression, store_schema=False
            )
        self._file.write_table(rows, row_group_size=rows.num_rows)

    def finish(self) -> Part | None:
        """Writes what is waiting and syncs; None where nothing was added."""
        if self._waiting:
            self._flush()
        if self._file is not None:
            self._file.close()
        return self._part.finish(self._records)

    def abort(self) -> None:
        """Closes without a promise."""
        self._part.abort()
