"""Records for people to read: what a test of a pipeline got, what an example gives."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.record import Record


def readable(record: Record) -> dict[str, Any]:
    """The parts that are there, as JSON can hold them; the position, and that it is a create, go without saying."""
    parts: dict[str, Any] = {
        "operation": None if record.operation == "create" else record.operation,
        "metadata": record.metadata or None,
        "key": readable_part(record.key),
        "before": readable_part(record.before),
        "after": readable_part(record.after),
    }
    return {name: part for name, part in parts.items() if part is not None}


def readable_part(part: Any) -> Any:
    """Raw data as the text that it is, or as Base64."""
    if not isinstance(part, bytes):
        return msgspec.to_builtins(part)
    try:
        return part.decode()
    except UnicodeDecodeError:
        return msgspec.to_builtins(part)
