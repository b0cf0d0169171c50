"""The record that goes to the dead-letter queue for a nacked one, in Conduit's layout."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.record import (
    CREATED_AT,
    DLQ_NACK_ERROR,
    DLQ_NACK_NODE_ID,
    Nack,
    Record,
    envelope,
)

DLQ_NACK_CODE = "conduit.dlq.nack.code"


def dead_letter(pipeline: str, source: str, node: str, nack: Nack, record: Record, now_ns: int) -> Record:
    """The whole failed record, as transformed so far, inside a new one that says why (CONDUIT_FACTS, DLQ).

    Its position is the source's id and the record's position: unique and stable. What JSON cannot hold is kept as
    escaped text: a dead letter is never lost for what it says.
    """
    origin = f"{pipeline}:{source}"
    metadata = {
        CREATED_AT: str(now_ns),
        DLQ_NACK_ERROR: clean(nack.message),
        DLQ_NACK_NODE_ID: node,
        DLQ_NACK_CODE: nack.code,
    }
    return Record(f"{origin}/{record.position}", metadata, _whole(record))


def _whole(record: Record) -> dict[str, Any]:
    whole = msgspec.to_builtins(envelope(record))
    try:
        msgspec.json.encode(whole)
    except (ValueError, TypeError):
        return _escaped(whole)
    return whole


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(k)): _escaped(v) for k, v in value.items()}
    return [_escaped(v) for v in value] if isinstance(value, list) else value


def clean(text: str) -> str:
    """``text`` with lone surrogates as backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
