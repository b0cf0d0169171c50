"""Lag of sources, queried such that a query that fails or hangs neither ends nor stops a run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from conduit_dagster.daemon_threads import IN_RUN, answer_within, answers_within
from conduit_dagster.engine.plugin_results import lag_at, lag_seconds_at
from conduit_dagster.sdk import Position, Source

K = TypeVar("K")


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
        return answer_within(source, lambda: lag_at(source, position), IN_RUN)
    except Exception:  # noqa: BLE001  # any plugin's code
        return None


def source_lag(source: Source, position: Position, seconds: float = IN_RUN) -> SourceLag:
    """Return the lag of a source at a position, as far as it answers within ``seconds``."""
    try:
        return answer_within(source, partial(_query, source, position), seconds)
    except Exception:  # noqa: BLE001  # any plugin's code
        return _unknown(source)


def source_lags(places: Mapping[K, tuple[Source, Position]], seconds: float) -> dict[K, SourceLag]:
    """Return the lags of many sources at their positions, all together within ``seconds``."""
    queries = {key: (source, partial(_query, source, position)) for key, (source, position) in places.items()}
    return {key: _unknown(source) for key, (source, _) in places.items()} | answers_within(queries, seconds)


def _query(source: Source, position: Position) -> SourceLag:
    return SourceLag(lag_at(source, position), source.lag_unit, lag_seconds_at(source, position))


def _unknown(source: Source) -> SourceLag:
    return UNKNOWN_LAG._replace(unit=source.lag_unit)
