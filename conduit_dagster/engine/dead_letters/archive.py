"""Archive of dead letters: every nacked record, independent of the queue. Parquet, written by the tasks.

``LOG/PIPELINE/~dead-letters/STEP-TASK-TOKEN.parquet``. The state store's index holds the file, row and digest of each
letter; a file that the index does not name is left over from an execution that did not count.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Final, NamedTuple

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.dead_letters.letter_layout import clean, shallow_record
from conduit_dagster.json_values import writable
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import ConduitError, FatalError, from_os_error
from conduit_dagster.sink import Sink
from conduit_dagster.state.steps import LetterPart

_BIG, _TEXT = 1, 2
"""Extension types: an integer beyond 64 bits as decimal text, and a text with lone surrogates."""
_encode = msgspec.msgpack.Encoder().encode


def _extension(code: int, data: memoryview) -> Any:
    if code == _BIG:
        return int(bytes(data))
    if code == _TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    raise ValueError(f"extension {code}")


_decode = msgspec.msgpack.Decoder(Record, ext_hook=_extension).decode


def keep(record: Record) -> bytes:
    """Encode a record. Dates and similar values become text, as in the commit log."""
    try:
        data = _encode(record)
        _decode(data)  # raises unless the archived record is readable
        return data
    except (ValueError, OverflowError, TypeError, RecursionError):
        pass
    try:
        data = _encode(_whole(record))
        _decode(data)
        return data
    except RecursionError:
        return _encode(_whole(shallow_record(record)))


def _whole(record: Record) -> Record:
    """Preserve lone surrogates: exactly in document values, as escapes where only valid text can be read back."""
    metadata = {clean(str(key)): clean(str(value)) for key, value in record.metadata.items()}
    after, key, before = (_plain(part) for part in (record.after, record.key, record.before))
    # an author's may be any JSON value, and is text wherever it is written
    return Record(clean(str(record.position)), metadata, after, key, before, record.operation)


def kept(data: bytes) -> Record:
    """Decode a record encoded by :func:`keep`. Raises ``msgspec.DecodeError`` (a ``ValueError``) for anything else."""
    return _decode(data)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {clean(str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 64:
        text = writable(value)
        return text if isinstance(text, str) else msgspec.msgpack.Ext(_BIG, str(text).encode())
    return value


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return msgspec.msgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


learn(Record)


_FOLDER = "~dead-letters"
_DEPTH: Final = 4
"""Folder levels to sync: the archive, its pipeline, the folder of all logs, and its parent."""
_GROUP_ROWS: Final = 4_096
_GROUP_BYTES: Final = 8 << 20
"""Limit of a row group, which writer and reader hold in memory."""
_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": ["source", "namespace", "node", "code", "missed"],
    "write_page_checksum": True,
}


class ArchivedLetter(NamedTuple):
    """One row of the archive."""

    source: str
    ordinal: int
    """Index of the record in the step's range of its source, from 0."""
    position: str
    namespace: str
    node: str
    code: str
    message: str
    missed: str
    """Same as in :class:`~conduit_dagster.state.steps.DeadLetter`."""
    step: int
    """Step of the dead letter, with its ``number``, if a replayed one failed again; otherwise -1 for both."""
    number: int
    failed: bytes
    """The record in its state at the node that nacked it."""
    original: bytes
    """The record as its source returned it."""


INDEX: Final = ArchivedLetter._fields[:-2]
"""Columns without the records."""


def archive_folder(log_url: str, pipeline: str) -> str:
    """Return the URL of a pipeline's archive."""
    return storage.join(log_url, storage.safe_name(pipeline), _FOLDER)


class ArchiveFile:
    """New file of the archive, created with its first letter."""

    def __init__(self, folder: str, step: int, task: int) -> None:
        self._folder = folder
        # random per attempt: a retry never collides with the file of an earlier attempt
        self._name = f"{step:012d}-{task:06d}-{secrets.token_hex(8)}.parquet"
        self._rows: list[ArchivedLetter] = []
        self._waiting = 0
        self._letters = 0
        self._file: storage.NewFile | None = None
        self._writer: Any = None

    def add(self, letter: ArchivedLetter) -> None:
        """Append a letter. Raises ``OSError`` if the disk is full."""
        self._rows.append(letter)
        self._waiting += len(letter.failed) + len(letter.original)
        self._letters += 1
        if len(self._rows) >= _GROUP_ROWS or self._waiting >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _schema()
        if self._file is None:
            storage.make_folder(self._folder)
            self._file = storage.NewFile(storage.join(self._folder, self._name))
            self._writer = pq.ParquetWriter(Sink(self._file), schema, **_OPTIONS)
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*self._rows, strict=True), schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=len(self._rows))
        self._rows, self._waiting = [], 0

    def finish(self) -> LetterPart | None:
        """Make the bytes durable and return the file's part of the archive; None if it has no letters.

        The name is durable once the driver has synced the folder.
        """
        if self._rows:
            self._flush()
        if self._file is None:
            return None
        self._writer.close()
        digest = self._file.finish()
        return LetterPart(self._name, self._letters, self._file.bytes, digest)

    def abort(self) -> None:
        """Close the file, if any, without committing it; no index names it."""
        if self._file is not None:
            self._file.abort()


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"ordinal": pa.int64(), "step": pa.int64(), "number": pa.int64()}
    kinds |= {"failed": pa.binary(), "original": pa.binary()}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in ArchivedLetter._fields])


@dataclass(frozen=True)
class Archive:
    """A pipeline's archive, for reading and cleanup."""

    folder: str

    def index(self, part: str) -> Iterator[list[ArchivedLetter]]:
        """Yield a file's letters without their records, one row group at a time."""
        with self._opened(part) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=list(INDEX))
                columns = (column.to_pylist() for column in table.columns)
                yield [ArchivedLetter._make((*values, b"", b"")) for values in zip(*columns, strict=True)]

    def letters(self, part: str, lines: Sequence[int]) -> Iterator[ArchivedLetter]:
        """Yield the letters in these rows, in this order. Raises ``FatalError`` (``dead_letters.damaged``)."""
        yield from map(ArchivedLetter._make, self._rows(part, lines, ArchivedLetter._fields))

    def records(self, part: str, lines: Sequence[int], original: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the failed records in these rows, in this order, and their originals if requested."""
        names = ("failed", "original") if original else ("failed",)
        for row in self._rows(part, lines, names):
            yield row if original else (row[0], b"")

    def _rows(self, part: str, lines: Sequence[int], names: Sequence[str]) -> Iterator[Any]:
        with self._opened(part) as file:
            try:
                yield from _rows(file, lines, names)
            except _arrow_errors() as error:
                raise _unread(error, storage.join(self.folder, part)) from None

    def verify(self, part: LetterPart) -> None:
        """Raise ``FatalError`` (``dead_letters.damaged``) if a file differs from the written one."""
        url = storage.join(self.folder, part.name)
        try:
            found = storage.digest(url)
        except FileNotFoundError:
            raise damaged(url, "is gone") from None
        if found != (part.bytes, part.sha256):
            raise damaged(url, "is not what was written")

    def sync(self) -> None:
        """Make the names of files durable, before the index refers to them."""
        storage.sync_levels(self.folder, _DEPTH)

    @contextmanager
    def _opened(self, part: str) -> Generator[Any]:
        import pyarrow.parquet as pq

        url = storage.join(self.folder, part)
        with ExitStack() as opened:
            try:
                file = opened.enter_context(storage.open_read(url))
                reader = pq.ParquetFile(file)
            except FileNotFoundError:
                raise damaged(url, "is gone") from None
            except _arrow_errors() as error:
                raise _unread(error, url) from None
            yield reader


def _unread(error: Exception, url: str) -> ConduitError:
    """Return the error for a file that can't be read: damaged, unless the disk or the store refuses it."""
    if isinstance(error, OSError) and error.errno:
        return from_os_error(error, "reading the archive of dead letters")
    return damaged(url, "is not what was written")


def _arrow_errors() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    # a page with a wrong checksum raises OSError
    return pa.ArrowException, OSError, IndexError


def _rows(file: Any, lines: Sequence[int], names: Sequence[str]) -> Iterator[Any]:
    """Yield these rows, in the order given; one row group is in memory."""
    ends = list(accumulate(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)))
    for group, some in groupby(lines, lambda line: bisect_right(ends, line)):
        wanted = list(some)
        if group >= len(ends):
            raise IndexError(wanted[0])
        table = file.read_row_group(group, columns=list(names))
        first = ends[group] - table.num_rows
        if wanted != list(range(first, ends[group])):
            table = table.take([line - first for line in wanted])
        yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)


def damaged(url: str, what: str) -> FatalError:
    """Return the error for an unusable file of the archive. Nothing was changed."""
    return FatalError(
        f"a file of the archive of dead letters {what}",
        code="dead_letters.damaged",
        place=url,
        fix="put it back as it was, or give its letters up: "
        f"conduit-dagster dlq discard PIPELINE --part {url.rpartition('/')[2]} --note WHY",
    )


def record_of(data: bytes, url: str) -> Record:
    """Decode a record of a letter. Raises ``FatalError`` (``dead_letters.damaged``)."""
    try:
        return kept(data)
    except ValueError:
        raise damaged(url, "holds something that is not a record") from None
