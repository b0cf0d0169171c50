"""A task's share of a delivery on its way into the staging folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from conduit_dagster.record import Nack, Record
from conduit_dagster.state.steps import Part
from conduit_dagster.turn import Turn


class Refusal(NamedTuple):
    """A record that a writer could not take: its place in the block, and why."""

    place: int
    nack: Nack


@dataclass(frozen=True)
class WriterTask:
    """Where a task's writer stages."""

    staging: str
    """URL of the folder for this execution of this delivery."""
    index: int
    """The task's place; parts in order of their index are the delivery in order."""
    token: str
    """Random, one per task attempt: a zombie's files never meet ours (DELIVERY.md, Stage)."""
    hash: str = ""
    """The delivery hash: the same for every attempt. For side effects of a writer's own."""
    turn: Turn = field(default_factory=Turn)
    """Names of single records: ``turn.key_of(record)``."""


class Writer(ABC):
    """Stages a task's share of a delivery. Runs in a task."""

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:  # noqa: B027  # most don't ask
        """Called before each ``write``: the i-th record comes from record ``first + origins[i]`` of the step's range.

        ``first`` and ``origins`` count the records of ``source`` from 0.
        """

    @abstractmethod
    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Takes a block, in order. Refused records are nacked, the others are in."""

    @abstractmethod
    def finish(self) -> Part | None:
        """Makes it durable and names it; None where nothing was written."""

    @abstractmethod
    def abort(self) -> None:
        """Called when the task fails, and not at all when it is killed."""
