"""Dead letters in the queue's layout, which is Conduit's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.json_values import finite, shallow, writable
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import CREATED_AT, DLQ_NACK_ERROR, DLQ_NACK_NODE_ID, Nack, Record, envelope

DLQ_NACK_CODE = "conduit.dlq.nack.code"
DLQ_SOURCE = "conduit.dlq.source.connector.id"
DLQ_DELIVERY_HASH = "conduit.dlq.delivery.hash"
DLQ_ATTEMPT = "conduit.dlq.attempt"
DLQ_OFFSET = "conduit.dlq.offset"
DLQ_NAMESPACE = "conduit.dlq.namespace"
_MESSAGE = 2_000
"""Maximum length of a message in the index, in characters."""


class NackOrigin(NamedTuple):
    """Origin of a nacked record, and its delivery to the queue."""

    pipeline: str
    source: str
    offset: int
    """Counted from 0 over all records that the source has ever returned."""
    hash: str
    """Delivery hash of the delivery to the queue."""


def dead_letter(origin: NackOrigin, node: str, nack: Nack, record: Record, now_ns: int) -> Record:
    """Return a new record with the complete failed record, as transformed so far, and the reason.

    Its position is the source's id and the record's position: unique and stable. Values that JSON cannot hold become
    escaped text: a dead letter is never lost because of its content. Metadata keys that Conduit does not define also
    begin with ``conduit.dlq.``.
    """
    source = node_id(origin.pipeline, origin.source)
    metadata = {
        CREATED_AT: str(now_ns),
        DLQ_NACK_ERROR: clean(nack.message),
        DLQ_NACK_NODE_ID: node,
        DLQ_SOURCE: source,
        DLQ_NACK_CODE: nack.code,
        DLQ_DELIVERY_HASH: origin.hash,
        DLQ_ATTEMPT: "1",  # a failed replay writes no second letter
        DLQ_OFFSET: str(origin.offset),
        DLQ_NAMESPACE: clean(record.collection),
    }
    return Record(f"{source}/{record.position}", metadata, _whole(record))


def said(nack: Nack) -> str:
    """Return a nack's message as stored in the index."""
    return clean(nack.message[:_MESSAGE])


def _whole(record: Record) -> dict[str, Any]:
    try:
        made = jsonable(msgspec.to_builtins(envelope(record)))
        msgspec.json.encode([[[[[[[[made]]]]]]]])  # the queue's own format adds levels
        return made
    except RecursionError:
        return jsonable(msgspec.to_builtins(envelope(shallow_record(record))))


def shallow_record(record: Record) -> Record:
    """Return the record with what no encoder nests deeply enough for as text."""
    after, key, before = (shallow(part) for part in (record.after, record.key, record.before))
    return Record(record.position, record.metadata, after, key, before, record.operation)


def record_json(record: Record | None) -> Any:
    """Return a record in Conduit's layout, with values that JSON can't hold as text."""
    return None if record is None else jsonable(msgspec.to_builtins(envelope(record)))


def jsonable(value: Any) -> Any:
    """Return the value, or a copy with text that JSON cannot hold escaped and unsupported numbers as text."""
    value = finite(value)
    try:
        msgspec.json.encode(value)
    except (ValueError, TypeError):
        return _escaped(value)
    return value


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(k)): _escaped(v) for k, v in value.items()}
    if isinstance(value, int):
        return writable(value)
    return [_escaped(v) for v in value] if isinstance(value, list) else value


def clean(text: str) -> str:
    """Return ``text`` with lone surrogates as backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


PIECES = "~pieces"
"""Marker in the list: a processor split the record, and other pieces of it passed, failed too, or were duplicates."""
NOBODY = "~nobody"
"""Marker: every destination of the file has the record by now, so a replay has nothing to send."""


def encode_missed(destinations: Iterable[str]) -> str:
    """Encode destination ids; an empty list means all destinations of the file at replay time."""
    names = list(destinations)
    return json.dumps(names) if names else ""


def decode_missed(text: str) -> tuple[str, ...]:
    """Decode the ids encoded by :func:`encode_missed`."""
    return tuple(json.loads(text)) if text else ()
