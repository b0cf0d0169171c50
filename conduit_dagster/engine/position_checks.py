"""Positions as the state store keeps them: values of JSON."""

from __future__ import annotations

import json
from typing import Any

from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit, Position, Record, Source
from conduit_dagster.sdk.promises import is_built_in


def _as_stored(node: str, position: Any, what: str) -> Position:
    """Return a source's position as it comes back from the store: a tuple is a list there, and a number as a key text.

    Raises ``FatalError`` (``source.position_invalid``) if JSON can't hold it; ``what`` gave it.
    """
    try:
        return json.loads(json.dumps(position, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _position_error(node, f"{what} gave a {type(position).__name__}: {error}") from error


def initial_of(node: str, source: Source) -> Position:
    """Return the source's initial position. Raises ``FatalError`` (``source.position_invalid``)."""
    return _as_stored(node, blamed(node, source.initial), "initial()")


def latest_of(node: str, source: Source, start: Position, limit: Limit, horizon: Any) -> Position:
    """Return the source's latest position after ``start``. Raises ``FatalError`` (``source.position_invalid``)."""
    end = blamed(node, source.latest, start, limit, horizon)
    # the position of a large folder has hundreds of kilobytes; the conformance suite checks those of built-ins
    if is_built_in(type(source)):
        return end
    if end is None and start is not None:
        raise _position_error(node, "latest() gave None: it gives its start if there is nothing new")
    return _as_stored(node, end, "latest()")


def own_positions(node: str, records: list[Record], before: Position) -> Position:
    """Check positions that are boundaries as well: the step may be cut between any two records. Return the last.

    ``before`` is that of the record before, None for a split's first.
    """
    positions: list[Any] = [record.position for record in records]
    if None in positions:
        raise _position_error(node, f"read() gave record {positions.index(None)} of a block without a position")
    _as_stored(node, positions[-1], "read()")
    texts = list(map(str, positions if before is None else [before, *positions]))
    if len(set(texts)) < len(texts):
        twice = next(text for place, text in enumerate(texts) if text in texts[:place])
        raise _position_error(node, f"read() gave two records the position {twice[:100]!r}")
    return positions[-1]


def _position_error(node: str, message: str) -> FatalError:
    """Return the error for a mistake in a source's positions."""
    return FatalError(
        message,
        code="source.position_invalid",
        node=node,
        fix="a position is a JSON value for the place right after one record: text, a number, a list or a dict",
    )
