"""Columns of few different strings, dictionary encoded: in memory as in the file, where they are plain strings."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

Column = Any
"""A pyarrow array; the library has no types."""
REPEATED: Final = pa.dictionary(pa.int32(), pa.string())


def encode_constant(value: str, count: int) -> Column:
    """The same value in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value], pa.string()))


def encode_repeated(values: list[str]) -> Column:
    """The values as they come; at least one."""
    if values.count(values[0]) == len(values):
        return encode_constant(values[0], len(values))
    return pa.array(values, pa.string()).dictionary_encode()


def decode_repeated(column: Column) -> list[str]:
    """The values again; what is equal is one shared string. No value may be null."""
    values, codes = codes_of(column)
    if len(values) == 1:
        return values * len(column)
    return list(map(values.__getitem__, codes.tolist()))


def codes_of(column: Column) -> tuple[list[str], Any]:
    """The different values, and which of them each row has (a numpy array). The list may hold some that no row has."""
    if len(column.dictionary) > len(column):  # it is a whole row group's
        column = column.dictionary_decode().dictionary_encode()
    return column.dictionary.to_numpy(zero_copy_only=False).tolist(), column.indices.to_numpy()
