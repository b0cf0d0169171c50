"""Explanation of a failure: its start, and which records are safe. The same in the terminal and in Dagster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import Strategy
from conduit_dagster.state.history import events

_LOOKS: Final = 200
"""Number of events searched for the beginning of a series of failures."""
_REST: Final[dict[Strategy, str]] = {
    "exactly-once": "nothing is lost: what is not acked is read or sent again, and delivered once",
    "at-least-once": "nothing is lost: what is not acked is read or sent again, and some of it may be delivered twice",
    "at-most-once": "what was being delivered is not sent again; pipelines history tells how many records that were",
}


_GONE: Final = ("gone", "gap", "pruned")
"""Last words of error codes for missing data."""


class FailureStory(NamedTuple):
    """Facts to report about a failure besides its error."""

    since_ns: int
    """Time of the first failure after the last success."""
    safe: str

    @property
    def since(self) -> str:
        """That time as text."""
        return datetime.fromtimestamp(self.since_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def story_of(database: sa.Engine, pipeline: str, strategy: Strategy, acked: int, code: str = "") -> FailureStory | None:
    """Return the story of a pipeline that has just failed; None if the store can't provide it.

    ``acked``: records acked in this run; ``code``: of the error.
    """
    try:
        since = _failing_since(database, pipeline)
    except (ConduitError, SQLAlchemyError):
        return None
    records = {0: "no record was", 1: "1 record was"}.get(acked, f"{acked:,} records were")
    rest = _REST[strategy]
    if code.replace(".", "_").split("_")[-1] in _GONE:
        rest = "what the error names is gone; " + rest.removeprefix("nothing is lost: ")
    return None if since is None else FailureStory(since, f"{records} acked in this run; {rest}")


def _failing_since(database: sa.Engine, pipeline: str) -> int | None:
    found: int | None = None
    for event in reversed(events(database, pipeline, _LOOKS)):
        if event.event == "failed":
            found = event.at_ns
        elif event.event in ("recovered", "stopped"):
            break
    return found
