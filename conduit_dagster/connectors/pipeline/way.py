"""How another pipeline is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from conduit_dagster.connectors.pipeline.labels import Labels
from conduit_dagster.sdk import Block, Limit, Position, ReadOptions, Split


class Way(ABC):
    """Its methods are those of :class:`Source`. All but ``read`` are the driver's."""

    @property
    @abstractmethod
    def unit(self) -> dict[str, Any]:
        """Which data this is."""

    @abstractmethod
    def initial(self) -> Position:
        """Before the oldest record that is there."""

    @abstractmethod
    def horizon(self) -> Any:
        """How far there is data now."""

    @abstractmethod
    def latest(self, start: Position, limit: Limit, horizon: Any) -> Position:
        """How far a step may go on from ``start``."""

    @abstractmethod
    def verify(self, start: Position, end: Position) -> None:
        """Raises ``FatalError`` where the range is not what it was."""

    @abstractmethod
    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """The range in parts."""

    @abstractmethod
    def relocate(self, split: Split) -> Split:
        """With where its data is now."""

    @abstractmethod
    def read(self, split: Split, options: ReadOptions, labels: Labels) -> Iterator[Block]:
        """The records of a split."""

    @abstractmethod
    def lag(self, position: Position) -> int:
        """How far it is behind."""

    def place(self, position: Position) -> Any:
        """What of a position says where it is."""
        return position

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """The position at a boundary that ``read`` gave."""
        del start, end
        return boundary
