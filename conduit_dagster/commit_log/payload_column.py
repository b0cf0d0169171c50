"""Keys and payloads as two Arrow columns: bytes, and what they are. A document is JSON text, raw data as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from conduit_dagster.commit_log.repeated_column import Column, decode_repeated, encode_constant, encode_repeated
from conduit_dagster.record import Data

Kind = Literal["null", "raw", "document"]
_KINDS: Final[dict[type, Kind]] = {type(None): "null", bytes: "raw", dict: "document"}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def encode_payload(values: list[Data]) -> tuple[Column, Column]:
    """Bytes and kinds. Raises what msgspec raises for a document that JSON cannot hold."""
    kind = _KINDS.get(type(values[0]))
    data = _ENCODERS[kind](values) if kind is not None else None
    return _encode_mixed(values) if data is None or kind is None else (data, encode_constant(kind, len(values)))


def _encode_nulls(values: list[Data]) -> Column | None:
    return pa.nulls(len(values), pa.binary()) if values.count(None) == len(values) else None


def _encode_raw(values: list[Data]) -> Column | None:
    try:
        data = pa.array(values, pa.binary())
    except pa.ArrowTypeError:
        return None
    return None if data.null_count else data


def _encode_documents(values: list[Data]) -> Column | None:
    # msgspec would take raw data as well, and write its base64
    return pa.array(list(map(_encode, values)), pa.binary()) if set(map(type, values)) == {dict} else None


# each gives None for values of more than the one kind
_ENCODERS: Final[dict[Kind, Callable[[list[Data]], Column | None]]] = {
    "null": _encode_nulls,
    "raw": _encode_raw,
    "document": _encode_documents,
}


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
