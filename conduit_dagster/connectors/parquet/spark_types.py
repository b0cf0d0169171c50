"""Columns that Arrow reads as another type than Parquet's format says, and Spark reads.

Spark writes its TIMESTAMP, which is an instant, as INT96 by default; Arrow reads it as a time without a zone. Writers
of Avro, Thrift and Protobuf objects write an enumeration as ENUM, which is text; Arrow reads it as binary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

_INT96: Final = "INT96"
_ENUM: Final = "ENUM"
_INSTANT: Final = pa.timestamp("us", "UTC")
_types: Any = pa.types


def spark_schema(parquet: Any) -> Any:
    """Return the file's Arrow schema with INT96 columns as instants and ENUM columns as text; None if it has none."""
    columns = [parquet.schema.column(i) for i in range(len(parquet.schema))]
    stored = [column.physical_type if column.logical_type.type != _ENUM else _ENUM for column in columns]
    if {_INT96, _ENUM}.isdisjoint(stored):
        return None
    leaves = iter(stored)
    return pa.schema([field.with_type(_spark_type(field.type, leaves)) for field in parquet.schema_arrow])


def _spark_type(kind: Any, leaves: Iterator[str]) -> Any:
    """Return the type as Spark reads it. ``leaves``: what is stored, from the first leaf of this type on."""

    def inside(field: Any) -> Any:
        return field.with_type(_spark_type(field.type, leaves))

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
    if stored == [_ENUM]:
        return pa.string()
    return _INSTANT if _types.is_timestamp(kind) and stored == [_INT96] else kind


def _leaves(kind: Any) -> int:
    """Return the number of Parquet columns of a type."""
    stored = getattr(kind, "storage_type", kind)
    return sum(_leaves(stored.field(i).type) for i in range(stored.num_fields)) or 1
