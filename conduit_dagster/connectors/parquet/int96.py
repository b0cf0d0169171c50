"""Timestamps of the Parquet type INT96 as instants.

Spark writes its TIMESTAMP, which is an instant, in this type by default; Arrow reads it as a time without a zone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

_INT96: Final = "INT96"
_INSTANT: Final = pa.timestamp("us", "UTC")
_types: Any = pa.types


def with_instants(parquet: Any) -> Any:
    """Return the file's Arrow schema with INT96 columns as instants, as Spark reads them; None if it has none."""
    stored = [parquet.schema.column(i).physical_type for i in range(len(parquet.schema))]
    if _INT96 not in stored:
        return None
    leaves = iter(stored)
    return pa.schema([field.with_type(_with_instants(field.type, leaves)) for field in parquet.schema_arrow])


def _with_instants(kind: Any, leaves: Iterator[str]) -> Any:
    """Return the type with INT96 leaves as instants. ``leaves``: physical types from the first leaf of this type on."""

    def inside(field: Any) -> Any:
        return field.with_type(_with_instants(field.type, leaves))

    if _types.is_struct(kind):
        return pa.struct([inside(field) for field in kind])
    if _types.is_map(kind):
        return pa.map_(inside(kind.key_field), inside(kind.item_field))
    if _types.is_list(kind):
        return pa.list_(inside(kind.value_field))
    if _types.is_large_list(kind):
        return pa.large_list(inside(kind.value_field))
    if _types.is_fixed_size_list(kind):
        return pa.list_(inside(kind.value_field), kind.list_size)
    stored = [next(leaves) for _ in range(_leaves(kind))]
    return _INSTANT if _types.is_timestamp(kind) and stored == [_INT96] else kind


def _leaves(kind: Any) -> int:
    """Return the number of Parquet columns of a type."""
    stored = getattr(kind, "storage_type", kind)
    return sum(_leaves(stored.field(i).type) for i in range(stored.num_fields)) or 1
