"""Columns as a pipeline file names them, and the Arrow types that JSON documents are read into."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

Schema = Any
"""A ``pyarrow.Schema``; the library has no types."""
DataType = Any
"""A ``pyarrow.DataType``."""

_TYPES: Final[dict[str, DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_COLUMN = re.compile(r"\s*([^:]+?)\s*:\s*([a-z_]+|decimal\(\d+,\s*\d+\))\s*(?:,(?!\s*$)|$)")
_FORBIDDEN = frozenset(" ,;{}()\n\t=")


def is_name(name: str) -> bool:
    """Whether a Delta column may be called so."""
    return bool(name) and _FORBIDDEN.isdisjoint(name)


def parse_columns(text: str) -> Schema:
    """The schema of ``name:type, name:type``; an empty one for no text. Raises ``ValueError`` saying what is wrong."""
    fields: list[Any] = []
    at, text = 0, text.strip()
    while at < len(text):
        found = _COLUMN.match(text, at)
        if found is None:
            raise ValueError(f"columns must be name:type, name:type; this is not: {text[at:]}")
        fields.append(_field(*found.groups()))
        at = found.end()
    _require_distinct([field.name for field in fields])
    return pa.schema(fields)


def lacking(asked: Schema, there: Schema) -> list[str]:
    """What is asked for and not there, or there with another type, as ``name:type``."""
    kinds = {field.name: field.type for field in there}
    return [f"{field.name}:{field.type}" for field in asked if kinds.get(field.name) != field.type]


def _field(name: str, kind: str) -> Any:
    if not is_name(name):
        raise ValueError(f"a Delta column can't be called {name!r}: no spaces and none of ,;{{}}()=")
    made = primitive(kind)
    if made is None:
        raise ValueError(f"column {name} has the unknown type {kind}: known are {', '.join(_TYPES)}, decimal(p,s)")
    return pa.field(name, made)


def _require_distinct(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(f"column {name} is there twice: Delta does not tell upper and lower case apart")
        seen.add(name.lower())


def primitive(kind: str) -> DataType | None:
    """The Arrow type behind a name such as ``long`` or ``decimal(10,2)``; None for no such name."""
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        return _TYPES.get(kind)
    precision, scale = int(decimal[1]), int(decimal[2])
    return pa.decimal128(precision, scale) if scale <= precision <= 38 and precision > 0 else None
