"""What of a record goes into a row: its document, and what it is found by."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.connectors.postgres.values import RecordError
from conduit_dagster.record import Data, Document, Record

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def documents(records: list[Record], raw_column: str) -> list[Document]:
    """The payloads as documents. Raises for one that is none."""
    found = [record.after for record in records]
    if set(map(type, found)) == {dict}:
        return found  # pyright: ignore[reportReturnType]  # just checked
    return [document(data, raw_column) for data in found]


def document(data: Data, raw_column: str) -> Document:
    """A payload as a document. A raw one goes whole into ``raw_column``, else it is read as JSON, as in Conduit."""
    if isinstance(data, dict):
        return data
    if data is None:
        raise RecordError("no_payload", "the record has no payload to make a row of")
    if raw_column:
        return {raw_column: data}
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = "the raw payload is no JSON object: decode it, or name a column for it with the setting raw-column"
        raise RecordError("raw_payload", message) from None


def key_document(key: Data) -> Document | None:
    """The key as a document, where it is one or is the JSON of one; None for any other key."""
    if isinstance(key, dict):
        return key or None
    if not key or not key.lstrip().startswith(b"{"):
        return None
    try:
        return _decode(key) or None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
