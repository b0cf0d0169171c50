"""Binary layout of Transporter's commit log, big-endian throughout (CASES C22).

A commit log entry is ``offset (8), message length (4), timestamp (8, whole seconds), mode (1), key length (4), key,
data length (4), data``; the message is key and data with their lengths, without timestamp and mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import IO, Final, Literal, NamedTuple

import msgspec

from conduit_dagster.commit_log.entries import Batch, Entry, decode_entries
from conduit_dagster.record import COLLECTION, CREATED_AT, MODE, MODES, Nack, Record, decode, encode
from conduit_dagster.recovery.errors import FatalError

_LENGTH: Final = Struct(">I")
_HEAD: Final = Struct(">QIQB")
_PIECE: Final = 1 << 20
_MODES: Final = 3


class LogRecord(NamedTuple):
    """An entry of the commit log."""

    offset: int
    timestamp: int
    """In whole seconds since 1970."""
    mode: int
    """0 copy, 1 sync, 2 complete."""
    key: bytes
    data: bytes


EntryData = Literal["opencdc", "raw"]
"""Content of entries' data: OpenCDC records as :func:`export_entries` writes them, or arbitrary bytes."""
_EXPORT_AGAIN: Final = "export it again; nothing of a damaged file was imported"


def damaged(why: str, at: int, fix: str = _EXPORT_AGAIN) -> FatalError:
    """Return the error for a damaged stream; ``at`` counts its bytes from 0."""
    return FatalError(
        f"the log can't be imported: {why}",
        code="log.import_damaged",
        place=f"byte {at}",
        fix=fix,
    )


def encode_log_record(record: LogRecord) -> bytes:
    """Encode one record. Raises ``struct.error`` for numbers that their fields can't hold."""
    key, data = record.key, record.data
    message = b"".join((_LENGTH.pack(len(key)), key, _LENGTH.pack(len(data)), data))
    return _HEAD.pack(record.offset, len(message), record.timestamp, record.mode) + message


def decode_log(stream: IO[bytes]) -> Iterator[tuple[int, LogRecord]]:
    """Yield each entry with its offset in the stream. Raises ``FatalError`` (``log.import_damaged``), with offset."""
    reader = _Reader(stream)
    while head := reader.take(_HEAD.size, "an entry's head", may_end=True):
        start = reader.at - _HEAD.size
        offset, length, timestamp, mode = _HEAD.unpack(head)
        if mode >= _MODES:
            raise damaged(f"the mode is {mode}, not 0, 1 or 2", start + _HEAD.size - 1)
        key = reader.take(reader.length("key", length - 2 * _LENGTH.size), "a key")
        left = length - 2 * _LENGTH.size - len(key)
        at = reader.at
        size = reader.length("data", left)
        if size != left:
            raise damaged(f"the data's length is {size}, and the message's length leaves {left}", at)
        yield start, LogRecord(offset, timestamp, mode, key, reader.take(size, "data"))


class _Reader:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.at = 0

    def take(self, size: int, what: str, may_end: bool = False) -> bytes:
        """Take so many bytes; with ``may_end``, none at the end of the stream."""
        data = self._read(size)
        if len(data) < size and (data or not may_end):
            raise damaged(f"it ends in the middle of {what}", self.at)
        return data

    def length(self, what: str, most: int) -> int:
        at = self.at
        size: int = _LENGTH.unpack(self.take(_LENGTH.size, f"a length ({what})"))[0]
        if size > most:
            raise damaged(f"the length of {what} is {size}, and the message has room for {max(0, most)}", at)
        return size

    def _read(self, size: int) -> bytes:
        # in pieces: a damaged length must not allocate gigabytes at once
        pieces: list[bytes] = []
        while size and (piece := self._stream.read(min(size, _PIECE))):
            pieces.append(piece)
            size -= len(piece)
            self.at += len(piece)
        return b"".join(pieces)


_SECOND: Final = 1_000_000
_LIMIT: Final = 1 << 63


class _Refused(msgspec.Struct):
    """Fields that a nacked record's JSON has in addition to OpenCDC."""

    node: str
    code: str
    message: str


class _Line(msgspec.Struct):
    nack: _Refused | None = None


_nack_of = msgspec.json.Decoder(_Line).decode


def export_entries(reader: Iterable[Batch], out: IO[bytes]) -> int:
    """Write the blocks that :func:`read` yielded; return the number of entries. Times are cut to whole seconds.

    The JSON of an entry that a node nacked has an additional ``nack`` object, which readers of OpenCDC ignore.
    """
    count = 0
    for batch in reader:
        records = [encode_log_record(_log_record(entry)) for entry in decode_entries(batch)]
        out.write(b"".join(records))
        count += len(records)
    return count


def _log_record(entry: Entry) -> LogRecord:
    data = encode(entry.record)
    if entry.nack is not None:
        node, nack = entry.nack
        data = data[:-1] + b',"nack":' + msgspec.json.encode(_Refused(node, nack.code, nack.message)) + b"}"
    mode = MODES.index(entry.mode)
    return LogRecord(entry.offset, entry.timestamp_us // _SECOND, mode, entry.namespace.encode(), data)


def import_entries(stream: IO[bytes], source: str, data: EntryData = "opencdc") -> Iterator[Entry]:
    """Yield the entries of a log in the layout, as entries of ``source``; positions are text.

    ``data`` raw: each entry's data becomes the raw payload of a record; the offset is its position, and the entry's key
    is its key and, as text, its collection.

    Raises ``FatalError`` (``log.import_damaged``) with the byte, possibly after some entries: use them only once all
    are read.
    """
    last = -1
    for at, record in decode_log(stream):
        if not last < record.offset < _LIMIT:
            raise damaged(f"offset {record.offset} comes after offset {last}", at)
        if record.timestamp >= _LIMIT // _SECOND:
            raise damaged(f"the time of offset {record.offset} is {record.timestamp} s", at)
        last = record.offset
        yield _raw_entry(source, record) if data == "raw" else _entry(source, record, at)


def _raw_entry(source: str, record: LogRecord) -> Entry:
    mode, time_us = MODES[record.mode], record.timestamp * _SECOND
    namespace = record.key.decode("utf-8", "backslashreplace")
    metadata = {CREATED_AT: str(time_us * 1000), MODE: mode, **({COLLECTION: namespace} if namespace else {})}
    operation = "create" if mode == "sync" else "snapshot"
    read = Record(str(record.offset), metadata, record.data, record.key or None, operation=operation)
    return Entry(source, record.offset, time_us, mode, namespace, read)


def _entry(source: str, record: LogRecord, at: int) -> Entry:
    try:
        namespace, refused = record.key.decode(), _nack_of(record.data).nack
        nack = None if refused is None else (refused.node, Nack(refused.code, refused.message))
        read = decode(record.data)
    except (ValueError, RecursionError) as error:  # not JSON, Base64 or UTF-8, or nested too deeply
        why, fix = f"the data of offset {record.offset} is not an OpenCDC record: {error}", "import it with --as raw"
        raise damaged(why, at, f"{fix}, if it holds other data; else {_EXPORT_AGAIN}") from error
    mode = MODES[record.mode]
    return Entry(source, record.offset, record.timestamp * _SECOND, mode, namespace, read, nack)
