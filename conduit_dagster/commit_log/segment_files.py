"""Parquet files of the log: written by tasks, and read in blocks of entries, with one row group in memory at a time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster import storage
from conduit_dagster.commit_log.entries import SCHEMA, Batch
from conduit_dagster.commit_log.segment_layout import Last, LogFolder, Written, hidden, part_name
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.sink import Sink
from conduit_dagster.state.log_store import LogPart
from conduit_dagster.storage import remove

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
        with suppress(pa.ArrowException, OSError):
            self._writer.close()  # writes a footer at the current position
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


BLOCK = 4096
_PIECE = 1 << 20
Manifest = Callable[[int, int | None], Sequence[LogPart]]
"""Returns the parts that overlap ``start <= offset < stop``, as currently listed in the state store."""


class LogDamagedError(FatalError):
    """Raised for a file that is not as in the manifest."""


class MissingPartError(LogDamagedError):
    """Raised for a missing file of the manifest: it is lost, or compaction has replaced it."""

    part = ""
    """The file's name in the manifest: in the error's texts a part of it may be masked."""


def read(
    folder: LogFolder,
    parts: Sequence[LogPart],
    start: int = 0,
    stop: int | None = None,
    columns: Sequence[str] | None = None,
    block: int = BLOCK,
) -> Iterator[Batch]:
    """Yield the entries with ``start <= offset < stop`` that compaction has left (CASES C18).

    ``columns``: all by default; ``offset`` is always included. Blocks hold at most ``block`` entries. Raises
    :class:`LogDamagedError` for a file that is missing (:class:`MissingPartError`, ``log.missing``) or differs from the
    manifest (``log.corrupt``), possibly after some blocks.
    """
    for part in parts:
        if part.next > start and (stop is None or part.first < stop):
            yield from _read_part(folder, part, start, stop, columns, block)


def read_current(
    folder: LogFolder,
    manifest: Manifest,
    start: int = 0,
    stop: int | None = None,
    columns: Sequence[str] | None = None,
    block: int = BLOCK,
) -> Iterator[Batch]:
    """Yield entries like :func:`read`, from the manifest; continue in the new file if compaction replaces one.

    Raises :class:`MissingPartError` if the log is deleted meanwhile.
    """
    parts = manifest(start, stop)
    while True:
        try:
            for batch in read(folder, parts, start, stop, columns, block):
                yield batch
                start = batch.column("offset")[-1].as_py() + 1
            return
        except MissingPartError as missing:
            parts = manifest(start, stop)
            # compaction leaves a file for every range, a deletion of the pipeline none
            if not parts or any(part.name == missing.part for part in parts):
                raise


def verify(folder: LogFolder, parts: Sequence[LogPart]) -> None:
    """Read the files completely and check their digests. Raises like :func:`read`, for any changed bit.

    :func:`read` checks sizes and page checksums: it may miss damage to a file's footer, some hundred bytes.
    """
    for part in parts:
        with _open(folder, part) as file, _damage(folder, part):
            sha = hashlib.sha256()
            while data := file.read(_PIECE):
                sha.update(data)
            if sha.hexdigest() != part.sha256:
                raise _corrupt(folder, part, "its digest is not the one in the manifest")


def _read_part(
    folder: LogFolder, part: LogPart, start: int, stop: int | None, columns: Sequence[str] | None, block: int
) -> Iterator[Batch]:
    with _open(folder, part) as file:
        with _damage(folder, part):
            if file.size() != part.bytes:
                raise _corrupt(folder, part, f"it has {file.size()} bytes instead of {part.bytes}")
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            if parquet.metadata.num_rows != part.entries:
                raise _corrupt(folder, part, f"it has {parquet.metadata.num_rows} entries instead of {part.entries}")
            if not parquet.schema_arrow.equals(SCHEMA):
                raise _corrupt(folder, part, "its columns are not a log's")
            groups = _groups(parquet, start, stop)
            wanted = None if columns is None else [*dict.fromkeys(["offset", *columns])]
            batches = _batches(parquet, block, groups, wanted)
        while True:
            with _damage(folder, part):
                batch = next(batches, None)
                if batch is not None:
                    batch.validate(full=True)  # checksums don't cover the page headers; costs 20 ns per entry
            if batch is None:
                return
            batch = _cut(batch, start, stop)
            if len(batch):
                yield batch


def _batches(parquet: Any, block: int, groups: list[int], columns: list[str] | None) -> Iterator[Batch]:
    # group by group: a block across two groups would need chunked metadata, which pyarrow does not support
    for group in groups:
        yield from parquet.iter_batches(block, row_groups=[group], columns=columns, use_threads=False)


def _groups(parquet: Any, start: int, stop: int | None) -> list[int]:
    """Return the row groups that may contain a wanted offset."""
    place = SCHEMA.get_field_index("offset")
    found: list[int] = []
    for number in range(parquet.num_row_groups):
        bounds = parquet.metadata.row_group(number).column(place).statistics
        if bounds is None or (bounds.max >= start and (stop is None or bounds.min < stop)):
            found.append(number)
    return found


def _cut(batch: Batch, start: int, stop: int | None) -> Batch:
    offsets = batch.column("offset").to_numpy()
    first = int(np.searchsorted(offsets, start))
    end = len(batch) if stop is None else int(np.searchsorted(offsets, stop))
    return batch if end - first == len(batch) else batch.slice(first, max(0, end - first))


def _open(folder: LogFolder, part: LogPart) -> Any:
    segment = folder.segment(part.segment)
    # the file may be renamed between the first two attempts
    for name in (part.name, hidden(part.name), part.name):
        url = storage.join(segment, name)
        path = storage.local_path(url)
        try:
            return pa.OSFile(str(path)) if path is not None else pa.PythonFile(storage.open_read(url), "r")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise from_os_error(error, "reading the commit log") from error
    missing = MissingPartError(
        f"the log's file with offsets {part.first} to {part.next - 1} is missing",
        code="log.missing",
        place=_place(folder, part),
        fix=_fix(folder, part),
    )
    missing.part = part.name
    raise missing


@contextmanager
def _damage(folder: LogFolder, part: LogPart) -> Generator[None]:
    """Convert a failed read into an error that names the file; errors of the operating system keep their class."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise from_os_error(error, "reading the commit log") from error
        raise _corrupt(folder, part, str(error).partition("\n")[0]) from error


def _corrupt(folder: LogFolder, part: LogPart, why: str) -> LogDamagedError:
    return LogDamagedError(
        f"the log's file with offsets {part.first} to {part.next - 1} is damaged: {why}",
        code="log.corrupt",
        place=_place(folder, part),
        fix=_fix(folder, part),
    )


def _fix(folder: LogFolder, part: LogPart) -> str:
    if folder.is_inspected:
        return "put the file back from a copy; a run that needs these entries stops, and says how to go on without them"
    given_up = folder.rewind(part.next)
    return f"put the file back from a copy; without one, these entries can only be given up: {given_up}"


def _place(folder: LogFolder, part: LogPart) -> str:
    url = storage.join(folder.segment(part.segment), part.name)
    return re.sub(r"://[^/@]*@", "://", url)
