"""What a source is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from conduit_dagster.connectors.base.context import ConnectorContext, ConnectorSettings
from conduit_dagster.connectors.base.ranges import Block, Limit, Position, ReadOptions, Split
from conduit_dagster.record import Record


class Source(ABC):
    """Where records come from.

    A range ``(start, end]`` that was once given must be readable again with the same records in the same order, else
    ``replayable`` is False and the commit log has to keep them.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[ConnectorSettings]] = ConnectorSettings
    replayable: ClassVar[bool] = True
    sets_metadata: ClassVar[bool] = False
    """True where ``read`` itself sets ``opencdc.readAt`` and ``conduit.source.connector.id``; else the engine does."""
    gives_rows: ClassVar[bool] = False
    """True where ``read`` gives :class:`Rows` when it is asked for them."""
    gives_json: ClassVar[bool] = False
    """True only where no document holds NaN or an infinity; else the engine looks at each, and makes them text."""
    identity_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that say which data this is; where one changes, the source starts anew under a new generation."""

    def __init__(self, settings: ConnectorSettings, context: ConnectorContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def initial(self) -> Position:
        """The position before the first record."""

    @abstractmethod
    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """The furthest position that one step may read to; ``start`` itself where there is nothing new.

        ``horizon`` is None while a pipeline runs on, else what :meth:`horizon` gave at the start of the run.
        """

    @abstractmethod
    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """The range cut into about ``n`` parts, in order."""

    @abstractmethod
    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """The split's records, block by block. Runs in a task."""

    def horizon(self) -> Any:
        """How far there is data now; a run that drains its sources stops there. Must not be None."""
        return {}

    def verify(self, start: Position, end: Position) -> None:  # noqa: B027  # most sources can't change behind our back
        """Raises ``FatalError`` when a range that was given before is not what it was: gone, replaced or cut off."""

    def gives_up(self, start: Position, end: Position) -> bool:
        """Whether a range that was planned, and never prepared, may be dropped because it is gone. Loses it."""
        return False

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """The source's position at a boundary that :meth:`read` gave inside this range."""
        return boundary

    def relocate(self, split: Split) -> Split:
        """A split of an earlier plan, with where its data is now."""
        return split

    def ack(self, upto: Position, generation: int) -> None:  # noqa: B027  # most sources have nothing to tell
        """Everything up to here is handled end to end. Monotone: a lower one, or of another generation, is ignored.

        Called after the position is durable in our store; it may be lost in a crash and is repeated at start.
        """

    def close(self) -> None:  # noqa: B027  # most hold nothing open
        """Called once at the end of every run, on the driver, whatever came of it; nothing is acked after it.

        A later run may use the same object again. Not called where the process is killed, or left hanging.
        """

    def lag(self, position: Position) -> int | None:
        """How far ``position`` is behind the newest data, in the source's unit (:attr:`lag_unit`); None if unknown."""
        return None

    lag_unit: ClassVar[str] = "bytes"

    def place(self, position: Position) -> Any:
        """What of a position says where it is; it goes into the delivery hash, so no observation may be in it."""
        return position

    @property
    def unit(self) -> dict[str, Any]:
        """Which data this is: the plugin and its identity settings."""
        values = self.settings.model_dump(mode="json", by_alias=True)
        return {"plugin": self.name, **{key: values.get(key) for key in self.identity_settings}}
