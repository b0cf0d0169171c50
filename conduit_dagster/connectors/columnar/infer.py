"""The columns of a new table, from the first documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from conduit_dagster.connectors.columnar.columns import DataType, Schema, is_name
from conduit_dagster.record import Document

_DEEPEST = 32


def infer(documents: Sequence[Document]) -> Schema:
    """A column per field; the first value that is not null decides its type, and long with double is double.

    As in Spark, what is only null is a string. A field with no possible column is left out: an empty object, a name
    that Delta forbids or that differs from another's in case only, more than 32 levels.
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
