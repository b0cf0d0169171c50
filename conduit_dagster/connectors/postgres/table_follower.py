"""What the ``postgres`` source asks of a way to follow tables: by the stream of a slot, or by polling."""

from __future__ import annotations

from typing import Any, Protocol

from conduit_dagster.connectors.postgres.source_position import PostgresPosition
from conduit_dagster.sdk import Limit, Split


class TableFollower(Protocol):
    """The driver's side of a source. Its members mean what those of :class:`~conduit_dagster.sdk.Source` do."""

    lag_unit: str

    @property
    def owned(self) -> str | None:
        """Return the one thing that no other source may read."""
        ...

    def check(self) -> None:
        """Raise ``FatalError`` for what a run would fail with. Makes nothing."""
        ...

    def begin_run(self) -> None:
        """Note that a run begins: only a run makes what the server lacks."""
        ...

    def horizon(self) -> Any:
        """Return how far there is data now, as JSON."""
        ...

    def latest(self, start: PostgresPosition, limit: Limit, horizon: Any) -> PostgresPosition:
        """Return how far one step may read."""
        ...

    def split(self, start: PostgresPosition, end: PostgresPosition, n: int) -> list[Split]:
        """Return the range cut into splits."""
        ...

    def gives_up(self, start: PostgresPosition, end: PostgresPosition) -> bool:
        """Return whether a range that was never prepared is planned again."""
        ...

    def verify(self, start: PostgresPosition, end: PostgresPosition) -> None:
        """Raise ``FatalError`` if the server no longer has a range."""
        ...

    def ack(self, upto: PostgresPosition) -> None:
        """Let go of what is delivered."""
        ...

    def lag(self, position: PostgresPosition) -> int | None:
        """Return how far a position is behind, in ``lag_unit``."""
        ...

    def lag_seconds(self, position: PostgresPosition) -> float | None:
        """Return for how long the oldest change may have waited."""
        ...

    def close(self) -> None:
        """End a run."""
        ...
