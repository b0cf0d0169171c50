"""Encoding of records in the archive of dead letters: MessagePack, which holds what JSON can't."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.engine.dead_letters.letter_layout import clean
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.record import Record

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
        _decode(data)  # an archived record must be readable
        return data
    except (ValueError, OverflowError, TypeError):
        return _encode(_whole(record))


def _whole(record: Record) -> Record:
    """Keep lone surrogates exactly in document values, and as escapes where only text can be read back."""
    metadata = {clean(str(key)): clean(str(value)) for key, value in record.metadata.items()}
    position = record.position if isinstance(record.position, int) else clean(record.position)
    after, key, before = (_plain(part) for part in (record.after, record.key, record.before))
    return Record(position, metadata, after, key, before, record.operation)


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
        return msgspec.msgpack.Ext(_BIG, str(value).encode())
    return value


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return msgspec.msgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


learn(Record)
