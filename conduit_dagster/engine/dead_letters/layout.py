"""The record that goes to the dead-letter queue for a nacked one, in Conduit's layout."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from conduit_dagster.json_values import finite
from conduit_dagster.record import (
    CREATED_AT,
    DLQ_NACK_ERROR,
    DLQ_NACK_NODE_ID,
    Nack,
    Record,
    envelope,
)

DLQ_NACK_CODE = "conduit.dlq.nack.code"
DLQ_SOURCE = "conduit.dlq.source.connector.id"
DLQ_DELIVERY_HASH = "conduit.dlq.delivery.hash"
DLQ_ATTEMPT = "conduit.dlq.attempt"
DLQ_OFFSET = "conduit.dlq.offset"
DLQ_NAMESPACE = "conduit.dlq.namespace"
_MESSAGE = 2_000
"""Characters."""


class Origin(NamedTuple):
    """Where a nacked record comes from, and what takes it to the queue."""

    pipeline: str
    source: str
    offset: int
    """Counted from 0 over everything that the source ever gave."""
    hash: str
    """Of the delivery to the queue."""


def dead_letter(origin: Origin, node: str, nack: Nack, record: Record, now_ns: int) -> Record:
    """The whole failed record, as transformed so far, inside a new one that says why (CONDUIT_FACTS, DLQ).

    Its position is the source's id and the record's position: unique and stable. What JSON cannot hold is kept as
    escaped text: a dead letter is never lost for what it says. What the golden files
    have no key for begins with ``conduit.dlq.`` as well, as their rules allow.
    """
    source = f"{origin.pipeline}:{origin.source}"
    metadata = {
        CREATED_AT: str(now_ns),
        DLQ_NACK_ERROR: clean(nack.message),
        DLQ_NACK_NODE_ID: node,
        DLQ_SOURCE: source,
        DLQ_NACK_CODE: nack.code,
        DLQ_DELIVERY_HASH: origin.hash,
        DLQ_ATTEMPT: "1",  # a replay that fails writes no second one
        DLQ_OFFSET: str(origin.offset),
        DLQ_NAMESPACE: clean(record.collection),
    }
    return Record(f"{source}/{record.position}", metadata, _whole(record))


def said(nack: Nack) -> str:
    """What the index keeps of its text."""
    return clean(nack.message[:_MESSAGE])


def _whole(record: Record) -> dict[str, Any]:
    return jsonable(msgspec.to_builtins(envelope(record)))


def jsonable(value: Any) -> Any:
    """The value, or a copy in which text that JSON cannot hold is escaped, and numbers that it lacks are text."""
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
    return [_escaped(v) for v in value] if isinstance(value, list) else value


def clean(text: str) -> str:
    """``text`` with lone surrogates as backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
