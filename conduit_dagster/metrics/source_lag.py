"""Lag of sources, queried such that a failing query never ends a run."""

from __future__ import annotations

from typing import NamedTuple

from conduit_dagster.sdk import Position, Source


class SourceLag(NamedTuple):
    """Lag of a source behind its newest data; None if unknown, or if the query fails."""

    amount: int | None = None
    unit: str = ""
    seconds: float | None = None
    """Seconds that the oldest unread data may have waited."""


UNKNOWN_LAG = SourceLag()


def lag_amount(source: Source, position: Position) -> int | None:
    """Return only the amount of a source's lag at a position; None if unknown, or if the query fails."""
    try:
        return source.lag(position)
    except Exception:  # noqa: BLE001  # any plugin's code
        return None


def source_lag(source: Source, position: Position) -> SourceLag:
    """Return the lag of a source at a position."""
    try:
        return SourceLag(source.lag(position), source.lag_unit, source.lag_seconds(position))
    except Exception:  # noqa: BLE001  # any plugin's code
        return UNKNOWN_LAG._replace(unit=source.lag_unit)
