"""Sizes of the rows of a table, by which a writer ends a row group."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_types: Any = pa.types
_compute: Any = pc

_UNKNOWN_WIDTH: Final = 16
"""Estimated bytes of a value without a fixed width that is neither text, a list nor a document."""


def row_sizes(table: Any) -> Any:
    """Return the approximate bytes of each row, as a numpy array of int64."""
    sizes = np.full(table.num_rows, 1, np.int64)
    for column in table.columns:
        sizes += _sizes(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return sizes


def _sizes(array: Any) -> Any:
    kind = array.type
    if _types.is_string(kind) or _types.is_binary(kind) or _types.is_large_string(kind) or _types.is_large_binary(kind):
        return 4 + _counts(_compute.binary_length(array))
    if _types.is_struct(kind):
        return sum((_sizes(child) for child in array.flatten()), np.zeros(len(array), np.int64))
    if _types.is_map(kind):
        return _sizes(array.cast(pa.list_(kind.field(0))))
    if _types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind):
        # the sizes of the items are summed: a row group must not outgrow memory because its rows are lists
        items = np.concatenate([np.zeros(1, np.int64), np.cumsum(_sizes(array.flatten()))])
        ends = np.cumsum(lengths := _counts(_compute.list_value_length(array)))
        return 4 + items[ends] - items[ends - lengths]
    return np.full(len(array), _width(kind), np.int64)


def _counts(lengths: Any) -> Any:
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _width(kind: Any) -> int:
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return _UNKNOWN_WIDTH
