"""Human-readable form of records, for the terminal, tests of pipelines and examples; and of times and values."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from conduit_dagster.record import Record


def readable(record: Record) -> dict[str, Any]:
    """Return the non-empty parts of a record as JSON can hold them, without the position or a ``create`` operation."""
    parts: dict[str, Any] = {
        "operation": None if record.operation == "create" else record.operation,
        "metadata": record.metadata or None,
        "key": readable_part(record.key),
        "before": readable_part(record.before),
        "after": readable_part(record.after),
    }
    return {name: part for name, part in parts.items() if part is not None}


def readable_part(part: Any) -> Any:
    """Return raw data as text if it is UTF-8, otherwise as Base64; other parts in JSON-compatible form."""
    if not isinstance(part, bytes):
        return msgspec.to_builtins(part)
    try:
        return part.decode()
    except UnicodeDecodeError:
        return msgspec.to_builtins(part)


def readable_line(layout: dict[str, Any]) -> str:
    """Return a record in Conduit's layout as one line, with raw data as text instead of Base64 where it is UTF-8.

    For display only: the output of ``--json`` keeps the layout.
    """
    decoded = {name: _decoded(layout[name]) for name in ("position", "key")}
    return json.dumps({**layout, **decoded, "payload": readable_payload(layout)}, ensure_ascii=False)


def readable_payload(layout: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of a record in Conduit's layout, with raw data as text instead of Base64 where it is UTF-8."""
    return {name: _decoded(part) for name, part in layout["payload"].items()}


def _decoded(part: Any) -> Any:
    return readable_part(base64.b64decode(part)) if isinstance(part, str) else part


def when(ns: float) -> str:
    """Return a time, in ns since the epoch, as ISO 8601 in UTC, to the second: all times are shown in one zone."""
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def exactly_when(time: datetime) -> str:
    """Return a time in UTC as ISO 8601, to the microsecond, written as ``when`` writes it."""
    return time.isoformat().replace("+00:00", "Z")


def shortened(text: str, most: int) -> str:
    """Return at most the first ``most`` characters of a text, with an ellipsis if it has more, for a message."""
    return text if len(text) <= most else f"{text[:most]}…"


_EXCERPT = 60


def excerpt(text: str | bytes) -> str:
    """Return the beginning of a text in quotes, for a message."""
    # a character takes at most four bytes
    start = text if isinstance(text, str) else text[: 4 * (_EXCERPT + 1)].decode(errors="replace")
    return repr(start[:_EXCERPT]) + ("…" if len(start) > _EXCERPT else "")
