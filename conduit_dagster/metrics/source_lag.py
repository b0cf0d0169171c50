"""Lag of sources, queried such that a query that fails or hangs neither ends nor stops a run."""

from __future__ import annotations

from typing import NamedTuple

from conduit_dagster.daemon_threads import IN_RUN, answer_within
from conduit_dagster.sdk import Position, Source


class SourceLag(NamedTuple):
    """Lag of a source behind its newest data; None if unknown, or if the query fails or hangs."""

    amount: int | None = None
    unit: str = ""
    seconds: float | None = None
    """Seconds that the oldest unread data may have waited."""


UNKNOWN_LAG = SourceLag()


def lag_amount(source: Source, position: Position) -> int | None:
    """Return only the amount of a source's lag at a position; None if unknown, or if the query fails or hangs."""
    try:
        return answer_within(source, lambda: source.lag(position), IN_RUN)
    except Exception:  # noqa: BLE001  # any plugin's code
        return None


def source_lag(source: Source, position: Position, seconds: float = IN_RUN) -> SourceLag:
    """Return the lag of a source at a position, as far as it answers within ``seconds``."""

    def query() -> SourceLag:
        return SourceLag(source.lag(position), source.lag_unit, source.lag_seconds(position))

    try:
        return answer_within(source, query, seconds)
    except Exception:  # noqa: BLE001  # any plugin's code
        return UNKNOWN_LAG._replace(unit=source.lag_unit)
