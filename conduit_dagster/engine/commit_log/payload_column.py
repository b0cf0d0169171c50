"""Keys and payloads as two Arrow columns: bytes, and what they are. A document is JSON text, raw data as it is."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from conduit_dagster.engine.commit_log.repeated_column import Column, decode_repeated, encode_constant, encode_repeated
from conduit_dagster.record import Data

Kind = Literal["null", "raw", "document"]
_KINDS: Final[dict[type, Kind]] = {type(None): "null", bytes: "raw", dict: "document"}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def encode_payload(values: list[Data]) -> tuple[Column, Column]:
    """Bytes and kinds. Raises what msgspec raises for a document that JSON cannot hold."""
    types = set(map(type, values))
    kind = _KINDS.get(types.pop()) if len(types) == 1 else None
    if kind is None:
        return _encode_mixed(values)
    if kind == "null":
        data = pa.nulls(len(values), pa.binary())
    else:
        data = pa.array(values if kind == "raw" else list(map(_encode, values)), pa.binary())
    return data, encode_constant(kind, len(values))


def _encode_mixed(values: list[Data]) -> tuple[Column, Column]:
    kinds: list[str] = [_kind(value) for value in values]
    data = [_encode(value) if kind == "document" else value for value, kind in zip(values, kinds, strict=True)]
    return pa.array(data, pa.binary()), encode_repeated(kinds)


def _kind(value: Data) -> Kind:
    if value is None:
        return "null"
    return "document" if isinstance(value, dict) else "raw"


def decode_payload(data: Column, kinds: Column) -> list[Data]:
    """The values again, each its own. Raises ``msgspec.DecodeError`` for what is no document's text."""
    if data.null_count == len(data):
        return [None] * len(data)
    values: list[Any] = data.to_numpy(zero_copy_only=False).tolist()
    kind = decode_repeated(kinds)
    documents = kind.count("document")
    if not documents:
        return values
    if documents == len(values):
        return list(map(_decode, values))
    return [_decode(value) if kind[i] == "document" else value for i, value in enumerate(values)]
