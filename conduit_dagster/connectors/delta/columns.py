"""The columns of a table that is there, as its log tells them."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from conduit_dagster.connectors.columnar.columns import DataType, Schema, primitive

_COMPUTED: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


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
        return None if kind == "date" and inside.count(".") > 1 else primitive(kind)
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
