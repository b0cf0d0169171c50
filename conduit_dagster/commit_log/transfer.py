"""The log in the binary layout of reference 4, out and in: the key is the namespace, the data OpenCDC JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Final

import msgspec

from conduit_dagster.commit_log.binary import (
    LogRecord,
    damaged,
    decode_log,
    encode_log_record,
)
from conduit_dagster.commit_log.entries import Batch, Entry, decode_entries
from conduit_dagster.record import MODES, Nack, decode, encode

_SECOND: Final = 1_000_000
_LIMIT: Final = 1 << 63


class _Refused(msgspec.Struct):
    """What the record's JSON has beyond OpenCDC where a node nacked it."""

    node: str
    code: str
    message: str


class _Line(msgspec.Struct):
    nack: _Refused | None = None


_nack_of = msgspec.json.Decoder(_Line).decode


def export_entries(reader: Iterable[Batch], out: IO[bytes]) -> int:
    """Writes the blocks that :func:`read` gave; gives how many entries. Times are cut to whole seconds.

    An entry that a node nacked has a ``nack`` object in its JSON, which OpenCDC does not know and others pass over.
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


def import_entries(stream: IO[bytes], source: str) -> Iterator[Entry]:
    """The entries of an export, as entries of ``source``; positions are text.

    Raises ``FatalError`` (``log.import_damaged``) with the byte, perhaps after some entries: put them to use when all
    are read.
    """
    last = -1
    for at, record in decode_log(stream):
        if not last < record.offset < _LIMIT:
            raise damaged(f"offset {record.offset} comes after offset {last}", at)
        if record.timestamp >= _LIMIT // _SECOND:
            raise damaged(f"the time of offset {record.offset} is {record.timestamp} s", at)
        last = record.offset
        yield _entry(source, record, at)


def _entry(source: str, record: LogRecord, at: int) -> Entry:
    try:
        namespace, refused = record.key.decode(), _nack_of(record.data).nack
        nack = None if refused is None else (refused.node, Nack(refused.code, refused.message))
        read = decode(record.data)
    except (ValueError, RecursionError) as error:  # no JSON, no base64, no UTF-8, or nested too deep
        raise damaged(f"the data of offset {record.offset} is no OpenCDC record: {error}", at) from error
    mode = MODES[record.mode]
    return Entry(source, record.offset, record.timestamp * _SECOND, mode, namespace, read, nack)
