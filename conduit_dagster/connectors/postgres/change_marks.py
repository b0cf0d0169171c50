"""Metadata keys that mark truncates and partial updates in change records."""

from __future__ import annotations

from typing import Final

from conduit_dagster.record import Record

TRUNCATE: Final = "postgres.truncate"
"""``"true"`` on a ``delete`` without key and payloads: it deletes all rows that the table has at this point of the
stream."""
UNCHANGED_TOAST: Final = "postgres.unchanged_toast"
"""Comma-separated names of columns that an update did not change and that ``after`` therefore lacks."""


def is_truncate(record: Record) -> bool:
    """Return whether the record is a truncate: a ``delete`` of all rows of its table."""
    return (
        record.operation == "delete"
        and record.metadata.get(TRUNCATE) == "true"
        and record.key is None
        and record.before is None
        and record.after is None
    )


def unchanged_fields(record: Record) -> list[str]:
    """Return the fields that an update lists as unchanged; empty for other records."""
    names = record.metadata.get(UNCHANGED_TOAST, "")
    return [name for part in names.split(",") if (name := part.strip())] if record.operation == "update" else []
