"""How far sources are behind, asked so that a number on display never ends a run."""

from __future__ import annotations

from typing import NamedTuple

from conduit_dagster.sdk import Position, Source


class SourceLag(NamedTuple):
    """How far a source is behind its newest data; None where it does not know, or fails."""

    amount: int | None = None
    unit: str = ""
    seconds: float | None = None
    """How long its oldest unread data may have waited."""


UNKNOWN_LAG = SourceLag()


def lag_amount(source: Source, position: Position) -> int | None:
    """Return a source's lag at a position in its unit, alone."""
    try:
        return source.lag(position)
    except Exception:  # noqa: BLE001  # any plugin's code
        return None


def source_lag(source: Source, position: Position) -> SourceLag:
    """Return a source's lag at a position."""
    try:
        return SourceLag(source.lag(position), source.lag_unit, source.lag_seconds(position))
    except Exception:  # noqa: BLE001  # any plugin's code
        return UNKNOWN_LAG._replace(unit=source.lag_unit)
