"""Why a document does not fit a table: the words of a nack. The verdict itself is the reader's (rows.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from conduit_dagster.connectors.columnar.columns import DataType, is_name
from conduit_dagster.record import Document, Nack

_SHOWN = 40


class Misfit:
    """Finds the first field of a refused document that does not fit."""

    def __init__(self, fits: Callable[[Any, DataType], bool], strict: bool, plugin: str) -> None:
        """``fits``: whether a value alone can be read as that type; ``strict``: a field needs a column.

        Codes begin with ``plugin``.
        """
        self._fits = fits
        self._strict = strict
        self._plugin = plugin

    def find(self, document: Document, fields: Any, inside: str = "") -> Nack | None:
        """What is wrong with it; ``fields`` is a schema or a struct type. None where nothing is found."""
        known = {field.name: field for field in fields}
        for name, value in document.items():
            found = self._value(value, known[name], inside + name) if name in known else self._unknown(inside, name)
            if found is not None:
                return found
        for name, field in known.items():
            if not field.nullable and name not in document:
                return self._nack("required", f"the required field {inside}{name} is missing")
        return None

    def _nack(self, what: str, message: str) -> Nack:
        return Nack(f"{self._plugin}.{what}", message)

    def _unknown(self, inside: str, name: str) -> Nack | None:
        why = "" if is_name(name) else " (and a column can't be called so)"
        return self._nack("unknown_field", f"no column for the field {inside}{name}{why}") if self._strict else None

    def _value(self, value: Any, field: Any, path: str) -> Nack | None:
        kind = field.type
        if value is None:
            return None if field.nullable else self._nack("required", f"the required field {path} is null")
        if pa.types.is_struct(kind) and isinstance(value, dict):
            return self.find(value, kind, path + ".")
        if pa.types.is_list(kind) and isinstance(value, list):
            found = (self._value(item, kind.value_field, f"{path}[{i}]") for i, item in enumerate(value))
            return next(filter(None, found), None)
        if self._fits(value, kind):
            return None
        return self._nack("does_not_fit", f"the field {path} is {_shown(value)}, and its column is of type {kind}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
