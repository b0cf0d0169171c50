"""Writer of one Parquet file of the log, in a task."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster import storage
from conduit_dagster.commit_log.entries import SCHEMA, Batch
from conduit_dagster.commit_log.segment_layout import Last, Written, hidden, part_name
from conduit_dagster.storage import Sink, remove

_GROUP_ENTRIES: Final = 1 << 16
_GROUP_BYTES: Final = 32 << 20
"""Size of a row group, which reader and writer hold in memory; large payloads reach it with fewer rows."""
_OPTIONS: Final[dict[str, Any]] = {
    # write plus read on one core, ns per entry: lz4 581, none 532 (at three times the size), snappy 614, zstd 735
    "compression": "lz4",
    # dictionaries for repeated values only; trying one for payloads costs a third of the write time
    "use_dictionary": [
        *("source", "timestamp", "mode", "operation", "namespace", "nack_node", "nack_code"),
        *("metadata.key_value.key", "metadata.key_value.value", "key_kind", "before_kind", "after_kind"),
    ],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED"},
    # for the other columns readers use the dictionary; their statistics would cost a tenth of the write time
    "write_statistics": ["offset", "timestamp"],
    "write_page_checksum": True,  # detects flipped bits when the file is read
}


class PartFile:
    """Writer of blocks of entries, in offset order, to one new file; without entries no file is created.

    The file is hidden until :meth:`LogFolder.publish_name`, and only the manifest determines whether it is in the log.
    """

    def __init__(self, folder: str, first: int, token: str) -> None:
        """``folder``: the segment's URL; ``first``: the first offset of the file's range."""
        self._folder = folder
        self._first = first
        self._name = part_name(first, token)
        self._file: storage.NewFile | None = None
        self._sink: Sink | None = None
        self._writer: Any = None
        self._waiting: list[Batch] = []
        self._waiting_entries = self._waiting_bytes = 0
        self._entries = self._nacked = 0
        self._last = first - 1
        self._namespaces: dict[str, Last] = {}

    def write(self, batch: Batch) -> None:
        """Write a block. Raises ``OSError`` if the file exists or the disk is full."""
        if not len(batch):
            return
        offsets = batch.column("offset").to_numpy()
        if int(offsets[0]) <= self._last:
            raise ValueError(f"offset {int(offsets[0])} after offset {self._last}")
        self._last = int(offsets[-1])
        self._entries += len(batch)
        self._nacked += len(batch) - batch.column("nack_node").null_count
        self._namespaces.update(_last_entries(batch, offsets))
        self._waiting.append(batch)
        self._waiting_entries += len(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_entries >= _GROUP_ENTRIES or self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._sink is None:
            storage.make_folder(self._folder)
            self._file = storage.NewFile(self.url)
            self._sink = Sink(self._file)
            self._writer = pq.ParquetWriter(self._sink, SCHEMA, **_OPTIONS)
        table = pa.Table.from_batches(self._waiting, SCHEMA)
        self._writer.write_table(table, row_group_size=len(table))
        self._waiting = []
        self._waiting_entries = self._waiting_bytes = 0

    @property
    def url(self) -> str:
        """URL of the file while it is written."""
        return storage.join(self._folder, hidden(self._name))

    def finish(self) -> Written | None:
        """Make the bytes durable (the name is, once the driver syncs the folder); return None without entries."""
        self._flush()
        if self._file is None:
            return None
        self._writer.close()
        file, digest = self._file, self._file.finish()
        return Written(self._name, self._first, self._entries, file.bytes, digest, self._nacked, self._namespaces)

    def abort(self) -> None:
        """Remove the file. A killed task leaves it behind, hidden, and a later compaction removes it."""
        self._waiting = []
        if self._file is None or self._sink is None:
            return
        self._sink.discard = True
        try:
            self._writer.close()  # writes a footer at the current position
        except (pa.ArrowException, OSError):
            pass
        self._file.abort()
        remove(self.url)


def _last_entries(batch: Batch, offsets: Any) -> dict[str, Last]:
    column = batch.column("namespace")
    codes, places = np.unique(column.indices.to_numpy()[::-1], return_index=True)
    modes, found = batch.column("mode"), dict[str, Last]()
    for code, back in zip(codes.tolist(), places.tolist(), strict=True):
        place = len(batch) - 1 - back
        found[column.dictionary[code].as_py()] = Last(int(offsets[place]), modes[place].as_py())
    return found
