"""Metadata of change records that say more about a change than their operation, key and payloads do."""

from __future__ import annotations

from typing import Final

from conduit_dagster.record import Record

TRUNCATE: Final = "postgres.truncate"
"""``"true"``: a ``delete`` without key and payloads, of all rows that the table has at this place of the order."""
UNCHANGED_TOAST: Final = "postgres.unchanged_toast"
"""Names of columns, separated by commas, that an update left as they were, so that ``after`` lacks them."""


def is_truncate(record: Record) -> bool:
    """Return whether the record stands for all rows of its table."""
    return (
        record.operation == "delete"
        and record.metadata.get(TRUNCATE) == "true"
        and record.key is None
        and record.before is None
        and record.after is None
    )


def unchanged_fields(record: Record) -> list[str]:
    """Return the fields that an update names as left as they were; empty for other records."""
    names = record.metadata.get(UNCHANGED_TOAST, "")
    return [name for part in names.split(",") if (name := part.strip())] if record.operation == "update" else []
