"""Columns of floating-point numbers that were read from JSON: which of their values are not what the document says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from conduit_dagster.connectors.columnar.columns import DataType
from conduit_dagster.record import Document
from conduit_dagster.whole_numbers import FloatBits, loses_digits

_types: Any = pa.types
_compute: Any = pc
_BITS: Final[dict[DataType, FloatBits]] = {pa.float32(): 24, pa.float64(): 53}


def has_infinity(array: Any) -> bool:
    """Return whether an array, or one nested in it, contains an infinity."""
    return _any(array, _compute.is_inf)


def has_large(array: Any) -> bool:
    """Return whether an array contains a number so large that a whole number may have been rounded to it."""
    return _any(array, _is_large)


def _is_large(floats: Any) -> Any:
    return _compute.greater_equal(_compute.abs(floats), pa.scalar(2.0 ** _BITS[floats.type], floats.type))


def _any(array: Any, test: Callable[[Any], Any]) -> bool:
    kind = array.type
    if _types.is_floating(kind):
        return bool(_compute.any(test(array)).as_py())
    if _types.is_struct(kind):
        return any(_any(nested, test) for nested in array.flatten())
    return _types.is_list(kind) and _any(array.flatten(), test)


def rounds(document: Document, fields: Any) -> bool:
    """Return whether a column changes a whole number of a document that fits. ``fields``: a schema or a struct type.

    A fraction is rounded to the nearest number of the type, as everywhere.
    """
    return any(_rounds(document.get(field.name), field.type) for field in fields)


def _rounds(value: Any, kind: DataType) -> bool:
    if isinstance(value, int) and kind in _BITS:
        return loses_digits(value, _BITS[kind])
    if isinstance(value, dict) and _types.is_struct(kind):
        return rounds(value, kind)
    return isinstance(value, list) and _types.is_list(kind) and any(_rounds(item, kind.value_type) for item in value)
