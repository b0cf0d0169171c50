"""Columns named in a pipeline file or inferred for a new table, and the Arrow types that documents are read into."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from pydantic import Field, field_validator

from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.record import Document
from conduit_dagster.sdk import ConnectorSettings

Schema = Any
"""A ``pyarrow.Schema``; pyarrow has no type annotations."""
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
NAME_RULE: Final = "a column's name is not empty, and has no blank, tab, line end or any of , ; { } ( ) ="


def is_name(name: str) -> bool:
    """Return whether a Delta column may have this name."""
    return bool(name) and _FORBIDDEN.isdisjoint(name)


def parse_columns(text: str) -> Schema:
    """Return the schema of ``name:type, name:type``; an empty one for empty text. Raises ``ValueError``."""
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


def named_columns(text: str) -> list[tuple[str, str]]:
    """Return name and type of the columns in a valid setting, as written."""
    return [(found[1], found[2]) for found in _COLUMN.finditer(text.strip())]


def lacking(asked: Schema, there: Schema) -> list[str]:
    """Return the requested columns that are missing or have another type, as ``name:type``."""
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
            raise ValueError(f"column {name} is listed twice: Delta does not tell upper and lower case apart")
        seen.add(name.lower())


def primitive(kind: str) -> DataType | None:
    """Return the Arrow type of a name such as ``long`` or ``decimal(10,2)``; None for an unknown type."""
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        return _TYPES.get(kind)
    precision, scale = int(decimal[1]), int(decimal[2])
    return pa.decimal128(precision, scale) if scale <= precision <= 38 and precision > 0 else None


class RowSourceSettings(ConnectorSettings):
    """Settings of a source of rows."""

    key: str = ""
    """Columns that form the record's key, such as ``id`` or ``region, id``; empty: records have no key."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns of the record key."""
        return comma_separated(self.key)


class ColumnsSettings(ConnectorSettings):
    """Settings of a destination with a column per field."""

    columns: str = ""
    """The columns of a new table or folder, such as ``id:long, name:string, amount:decimal(10,2)``; an existing one
    must have them. Empty: the columns of the first rows. For documents, these are taken from the first block: a field's
    first value decides its type, and a field that is only null is a string.
    """
    unknown_fields: Literal["refuse", "ignore"] = Field("refuse", alias="unknown-fields")
    """What to do with a record that has a field without a column, even a null one: ``refuse`` nacks the record;
    ``ignore`` leaves the field out.
    """

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: str) -> str:
        parse_columns(columns)
        return columns


_DEEPEST = 32


def infer(documents: Sequence[Document]) -> Schema:
    """Return a column per field; its first non-null value decides its type, and long mixed with double is double.

    As in Spark, a field that is only null is a string. Fields that can't be columns are left out: empty objects, names
    that Delta forbids or that differ from others only in case, nesting deeper than 32 levels.
    """
    return pa.schema(_fields(documents, 0))


def _fields(documents: Iterable[Document], depth: int) -> list[Any]:
    values: dict[str, list[Any]] = {}
    for document in documents:
        for name, value in document.items():
            values.setdefault(name, []).append(value)
    spelled: set[str] = set()
    fields: list[Any] = []
    for name, given in values.items():
        made = _type([value for value in given if value is not None], depth)
        if made is not None and is_name(name) and name.lower() not in spelled:
            spelled.add(name.lower())
            fields.append(pa.field(name, made))
    return fields


def _type(values: list[Any], depth: int) -> DataType | None:
    first = values[0] if values else ""
    if depth > _DEEPEST:
        return None
    if isinstance(first, bool):
        return pa.bool_()
    if isinstance(first, int | float):
        return pa.float64() if any(isinstance(value, float) for value in values) else pa.int64()
    if isinstance(first, dict):
        fields = _fields((value for value in values if isinstance(value, dict)), depth + 1)
        return pa.struct(fields) if fields else None
    if isinstance(first, list):
        items = [item for value in values if isinstance(value, list) for item in value if item is not None]
        item = _type(items, depth + 1)
        return None if item is None else pa.list_(pa.field("element", item))
    return pa.string()
