"""Parsing of times that operators write."""

from __future__ import annotations

from datetime import datetime

from pydantic_core import PydanticCustomError

from conduit_dagster.config.scalars import parse_age
from conduit_dagster.engine.operate.operator_errors import refused

_LAST = 2**63 - 1
"""Latest time that the store can hold, in ns."""


def moment(text: str, now_ns: int, option: str) -> int:
    """Parse a time to ns: an age before ``now_ns``, or ISO 8601, local if it names no zone.

    Raises ``FatalError`` (``usage.since``); ``option`` is the option that holds the text.
    """
    try:
        if (age := parse_age(text)) >= 0:
            return max(0, now_ns - int(age * 1e9))
    except PydanticCustomError:
        pass  # then it is a time
    try:
        return min(max(0, int(datetime.fromisoformat(text).timestamp() * 1e9)), _LAST)
    except (ValueError, OverflowError):
        fix = "write how long ago, such as 30m, 2h or 7d, or a time such as 2026-08-02T10:00"
        raise refused("usage.since", f"{option} {text} is neither an age nor a time", fix) from None
