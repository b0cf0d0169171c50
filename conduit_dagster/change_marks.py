"""Metadata keys that mark truncates and partial updates in change records, whoever makes or applies them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from conduit_dagster.record import Record

TRUNCATE: Final = "postgres.truncate"
"""``"true"`` on a ``delete`` without key and payloads: it deletes all rows that the table has at this point of the
stream."""
UNCHANGED_TOAST: Final = "postgres.unchanged_toast"
"""Comma-separated names of columns that an update did not change and that ``after`` therefore lacks, in double quotes
where needed."""
_NAME: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]+))\s*(?:,|$)')


def is_truncate(record: Record) -> bool:
    """Return whether the record is a truncate: a ``delete`` of all rows of its table.

    A processor of a field within the payload may have made an empty document of none.
    """
    return (
        record.operation == "delete"
        and record.metadata.get(TRUNCATE) == "true"
        and not record.key
        and not record.before
        and not record.after
    )


def unchanged_fields(record: Record) -> list[str]:
    """Return the fields that an update lists as unchanged; empty for other records."""
    text = record.metadata.get(UNCHANGED_TOAST) if record.operation == "update" else None
    if not text:
        return []
    names = _NAME.findall(text)
    return [name for quoted, plain in names if (name := quoted.replace('""', '"') or plain.strip())]


def unchanged_text(names: Sequence[str]) -> str:
    """Return the value of ``UNCHANGED_TOAST`` for these columns."""
    return ",".join(map(_listed, names))


def _listed(name: str) -> str:
    needs_quotes = "," in name or name.startswith('"') or name != name.strip()
    return '"' + name.replace('"', '""') + '"' if needs_quotes else name
