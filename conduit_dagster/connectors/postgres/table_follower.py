"""Protocol of the two ways to follow tables: the stream of a slot, and polling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from conduit_dagster.connectors.postgres.source_position import PostgresPosition
from conduit_dagster.sdk import Leftover, Limit, Split


class TableFollower(Protocol):
    """The driver's side of a source. Members have the same contracts as those of
    :class:`~conduit_dagster.sdk.Source`."""

    lag_unit: str

    @property
    def owned(self) -> str | None:
        """Return the resource that no other source may read."""
        ...

    def check(self) -> None:
        """Raise ``FatalError`` for problems that would fail a run. Creates nothing."""
        ...

    def begin_run(self) -> None:
        """Note that a run begins: only a run creates a missing publication or slot."""
        ...

    def horizon(self) -> Any:
        """Return the current end of the data, as JSON."""
        ...

    def latest(self, start: PostgresPosition, limit: Limit, horizon: Any) -> PostgresPosition:
        """Return the end of the next step."""
        ...

    def split(self, start: PostgresPosition, end: PostgresPosition, n: int) -> list[Split]:
        """Return the splits of a range."""
        ...

    def gives_up(self, start: PostgresPosition, end: PostgresPosition) -> bool:
        """Return whether a range that was never prepared must be planned again."""
        ...

    def verify(self, start: PostgresPosition, end: PostgresPosition) -> None:
        """Raise ``FatalError`` if the server no longer has the data of a range."""
        ...

    def ack(self, upto: PostgresPosition) -> None:
        """Release resources of delivered data."""
        ...

    def leftovers(self) -> Sequence[Leftover]:
        """Return what the server keeps for this source alone."""
        ...

    def remove_leftovers(self) -> None:
        """Remove it."""
        ...

    def lag(self, position: PostgresPosition) -> int | None:
        """Return the lag of a position, in ``lag_unit``."""
        ...

    def lag_seconds(self, position: PostgresPosition) -> float | None:
        """Return for how many seconds the oldest change after a position may have waited."""
        ...

    def close(self) -> None:
        """End a run."""
        ...
