"""The columns of a table: Delta's types and the Arrow types that JSON documents are read into."""

from __future__ import annotations

import json
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
_COMPUTED = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


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


def _field(name: str, kind: str) -> Any:
    if not is_name(name):
        raise ValueError(f"a Delta column can't be called {name!r}: no spaces and none of ,;{{}}()=")
    made = _primitive(kind)
    if made is None:
        raise ValueError(f"column {name} has the unknown type {kind}: known are {', '.join(_TYPES)}, decimal(p,s)")
    return pa.field(name, made)


def _require_distinct(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(f"column {name} is there twice: Delta does not tell upper and lower case apart")
        seen.add(name.lower())


def _primitive(kind: str) -> DataType | None:
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        return _TYPES.get(kind)
    precision, scale = int(decimal[1]), int(decimal[2])
    return pa.decimal128(precision, scale) if scale <= precision <= 38 and precision > 0 else None


def writable(delta_schema: str) -> Schema:
    """What JSON documents can fill of a table's schema (Delta's JSON); other columns are left out, and so null.

    Raises ``ValueError`` naming a column that can't be left out.
    """
    return pa.schema(_fields(json.loads(delta_schema)["fields"], ""))


def _fields(fields: list[dict[str, Any]], inside: str) -> list[Any]:
    kept: list[Any] = []
    for field in fields:
        made = _type(field["type"], f"{inside}{field['name']}.")
        if any(key in field["metadata"] for key in _COMPUTED):
            raise ValueError(f"column {inside}{field['name']} is computed or checked by Delta")
        if made is not None:
            kept.append(_nullable_or_not(field["name"], made, field["nullable"], inside))
        elif not field["nullable"]:
            raise ValueError(f"column {inside}{field['name']} is required and of a type that JSON can't fill")
    return kept


def _type(kind: Any, inside: str) -> DataType | None:
    """None for what JSON has no value for: binary, maps, variants, and dates inside others."""
    if isinstance(kind, str):
        return None if kind == "date" and inside.count(".") > 1 else _primitive(kind)
    if kind["type"] == "struct":
        fields = _fields(kind["fields"], inside)
        return pa.struct(fields) if fields else None
    if kind["type"] == "array":
        item = _type(kind["elementType"], f"{inside}element.")
        return None if item is None else pa.list_(_nullable_or_not("element", item, kind["containsNull"], inside))
    return None


def _nullable_or_not(name: str, kind: DataType, nullable: bool, inside: str) -> Any:
    # Arrow's reader takes a null object for one whose required fields are null
    if nullable and pa.types.is_struct(kind) and not all(field.nullable for field in kind):
        raise ValueError(f"column {inside}{name} may be null, and has required fields inside")
    return pa.field(name, kind, nullable)
