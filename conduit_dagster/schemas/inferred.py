"""Inference of an Avro schema from a document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NULLABLE_TEXT: Final = ["null", "string"]
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class NoSchemaError(Exception):
    """Avro has no schema for the document."""


def inferred(document: dict[str, Any]) -> dict[str, Any]:
    """Return a record schema with the fields sorted by name, so that the same fields give the same schema.

    Whole numbers are ``long``, others ``double``; a null is a nullable text, for want of anything better. Documents in
    a list share one schema: fields that some of them lack are nullable.

    Raises :class:`NoSchemaError` for a name that Avro does not allow, or an integer beyond 64 bits.
    """
    return _record([document], "record")


def _record(documents: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    names = sorted({key for document in documents for key in document})
    return {"type": "record", "name": name, "fields": [_field(documents, name, key) for key in names]}


def _field(documents: Sequence[dict[str, Any]], path: str, name: str) -> dict[str, Any]:
    if not _NAME.fullmatch(name):
        raise NoSchemaError(f"Avro takes no field named {name!r}: letters, digits and _")
    values = [document[name] for document in documents if name in document]
    kind, missing = _type(values, f"{path}_{name}"), len(values) < len(documents)
    if missing and not (isinstance(kind, list) and "null" in kind):
        kind = ["null", *kind] if isinstance(kind, list) else ["null", kind]
    return {"name": name, "type": kind, **({"default": None} if missing else {})}


def _type(values: Sequence[Any], path: str) -> Any:
    """Return the common type of all values: a union if they differ."""
    kinds: list[Any] = []
    documents = [value for value in values if isinstance(value, dict)]
    lists = [value for value in values if isinstance(value, list)]
    if documents:
        kinds.append(_record(documents, path))
    if lists:
        items = [item for one in lists for item in one]
        kinds.append({"type": "array", "items": _type(items, path) if items else _NULLABLE_TEXT})
    for value in values:
        if not isinstance(value, dict | list) and (kind := _simple(value)) not in kinds:
            kinds.append(kind)
    if "double" in kinds and "long" in kinds:
        kinds.remove("long")
    if kinds == ["null"]:
        return _NULLABLE_TEXT
    kinds.sort(key=lambda kind: kind != "null")
    return kinds[0] if len(kinds) == 1 else kinds


def _simple(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise NoSchemaError(f"Avro takes no number beyond 64 bits: {value}")
        return "long"
    return "double" if isinstance(value, float) else "string"
