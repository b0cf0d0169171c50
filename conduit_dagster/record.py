"""The OpenCDC record and its JSON layout.

Tasks represent a record as one :class:`Record`. A payload is *raw* (``bytes``), a *document* (``dict``) or ``None``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Literal, cast
from uuid import UUID

import msgspec

Document = dict[str, Any]
Data = Document | bytes | None
Operation = Literal["create", "update", "delete", "snapshot"]
OPERATIONS: tuple[Operation, ...] = ("create", "update", "delete", "snapshot")

COLLECTION = "opencdc.collection"
CREATED_AT = "opencdc.createdAt"
READ_AT = "opencdc.readAt"
FILE_HEADER = "file.header"
"""First line of the record's file, for a source that does not emit it as a record."""
SOURCE_CONNECTOR_ID = "conduit.source.connector.id"
Mode = Literal["copy", "sync", "complete"]
MODES: tuple[Mode, ...] = ("copy", "sync", "complete")
MODE = "conduit.mode"
"""Metadata key for the state of a collection: copy, complete (the last record of its copy) or sync."""
DLQ_NACK_ERROR = "conduit.dlq.nack.error"
DLQ_NACK_NODE_ID = "conduit.dlq.nack.node.id"


class Record(msgspec.Struct, gc=False):
    """One OpenCDC record.

    ``position`` is chosen by the connector; an ``int`` stands for its decimal text and becomes text only when it is
    written. ``metadata`` is shared between the records of a split: replace it, never change it in place.
    """

    position: int | str
    metadata: dict[str, str]
    after: Data = None
    key: Data = None
    before: Data = None
    operation: str = "create"

    @property
    def collection(self) -> str:
        """The record's namespace: its ``opencdc.collection``, or an empty string."""
        return self.metadata.get(COLLECTION, "")


def mode_of(record: Record) -> Mode:
    """Return the mode in the record's metadata; by default copy for a snapshot, otherwise sync (reference 4, Mode)."""
    mode = record.metadata.get(MODE)
    return mode if mode in MODES else "copy" if record.operation == "snapshot" else "sync"


class Nack(msgspec.Struct, frozen=True):
    """Reason why a record was refused: a stable error code and a human-readable message."""

    code: str
    message: str


class Payload(msgspec.Struct, gc=False):
    """The ``payload`` object of a record's JSON."""

    before: Any
    after: Any


class Envelope(msgspec.Struct, gc=False):
    """A record as Conduit writes it: raw data is Base64 text, a document is an object."""

    position: bytes
    operation: str
    metadata: Any
    key: Any
    payload: Payload


class _Read(msgspec.Struct):
    before: Document | str | None = None
    after: Document | str | None = None


class _ReadEnvelope(msgspec.Struct):
    position: str
    operation: str
    metadata: dict[str, str]
    key: Document | str | None
    payload: _Read


_DATA = frozenset({dict, bytes, type(None)})


def structure_faults(records: Iterable[Record]) -> dict[int, str]:
    """Return why :func:`decode` would not read records back unchanged, by place; nothing for those that it would."""
    faults: dict[int, str] = {}
    sound: Any = {}  # the last valid metadata
    for place, record in enumerate(records):
        # most records of a block share their metadata
        if record.metadata is not sound:
            if _is_texts(record.metadata):
                sound = record.metadata
            else:
                faults[place] = "its metadata is no dict of texts: write str(...)"
                continue
        if not (type(record.after) in _DATA and type(record.key) in _DATA and type(record.before) in _DATA):
            name = next(name for name in ("after", "key", "before") if type(getattr(record, name)) not in _DATA)
            faults[place] = f"its {name} is neither a document (dict) nor raw data (bytes) nor None"
    return faults


def structure_fault(record: Record) -> str | None:
    """Return the fault of one record (:func:`structure_faults`)."""
    return structure_faults((record,)).get(0)


def _is_texts(metadata: Any) -> bool:
    if type(metadata) is not dict:
        return False
    for key, value in cast("dict[Any, Any]", metadata).items():
        if type(key) is not str or type(value) is not str:
            return False
    return True


def envelope(record: Record) -> Envelope:
    """Return the record in Conduit's JSON layout; its parts are shared, not copied."""
    return Envelope(
        str(record.position).encode(),
        record.operation,
        record.metadata,
        record.key,
        Payload(record.before, record.after),
    )


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_ReadEnvelope).decode


def encode(record: Record) -> bytes:
    """Encode as a line of OpenCDC JSON, without line end. Raises msgspec's error for a value that JSON cannot hold."""
    return _encode(envelope(record))


def decode(line: bytes) -> Record:
    """Decode one line written by :func:`encode`. Raises ``msgspec.DecodeError`` for anything else."""
    read = _decode(line)
    return Record(
        base64.b64decode(read.position).decode(),
        read.metadata,
        _data(read.payload.after),
        _data(read.key),
        _data(read.payload.before),
        read.operation,
    )


def _data(value: Document | str | None) -> Data:
    return base64.b64decode(value) if isinstance(value, str) else value


_KEPT = (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
_copy = partial(msgspec.to_builtins, builtin_types=_KEPT)


def copy_document(document: Document) -> Document:
    """Return a copy that shares no dict or list with ``document``, whose values are those that JSON can hold."""
    try:
        return _copy(document)
    except (TypeError, RecursionError):  # texts of derived classes; more levels than Python's recursion limit
        return _copy_deep(document)


def copy(record: Record) -> Record:
    """Return an independent copy for one branch. Metadata is shared until it is replaced (CASES C21)."""
    return Record(
        record.position,
        record.metadata,
        copy_data(record.after),
        copy_data(record.key),
        copy_data(record.before),
        record.operation,
    )


def change_metadata(records: Iterable[Record], change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Set the metadata of each record to what ``change`` returns for it; records that share theirs still do then."""
    last: dict[str, str] | None = None
    changed: dict[str, str] = {}
    for record in records:
        if record.metadata is not last:
            last = record.metadata
            changed = change(last)
        record.metadata = changed


def share_documents(records: Iterable[Record]) -> bool:
    """Return whether two of the records are the same one, or have a whole payload or key in common."""
    seen = [
        id(part)
        for record in records
        for part in (record, record.after, record.key, record.before)
        if type(part) is dict or part is record
    ]
    return len(set(seen)) < len(seen)


def copy_data(value: Data) -> Data:
    """Return a copy of a payload or key that shares no dict or list with ``value``."""
    return copy_document(value) if isinstance(value, dict) else value


def _copy_deep(root: Document) -> Document:
    """Copy a document of any depth, with values of any class."""
    made: Document = {}
    waiting: list[tuple[Any, Any]] = [(root, made)]
    while waiting:
        old, new = waiting.pop()
        for key, value in old.items() if isinstance(old, dict) else enumerate(old):
            inner = {} if isinstance(value, dict) else [None] * len(value) if isinstance(value, list) else value
            new[key] = inner
            if inner is not value:
                waiting.append((value, inner))
    return made
