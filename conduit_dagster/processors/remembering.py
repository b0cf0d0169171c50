"""What a processor is that looks back on records of steps before: what it remembers is committed with each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

from conduit_dagster.processors.base import Processor


class Entry(NamedTuple):
    """Something remembered."""

    key: bytes
    """Sixteen bytes."""
    owner: bytes
    """Eight bytes that name the record it is of, the same for every attempt."""
    number: int
    """Which of the records that came to the processor, from 1, over all steps."""
    at_ns: int
    """The time of the step."""


class Remembering(Processor, ABC):
    """What it gives for a record depends on the records before, in the pipeline's order.

    The engine runs it in one task, hands it before each step what it has remembered until then, and stores what is new
    with the step: a step that is repeated meets the same memory, and one that did not count leaves nothing in it.
    """

    count: int = 0
    """Records that came to it, over all steps."""

    @abstractmethod
    def recall(self, count: int, entries: Iterable[Entry]) -> None:
        """Forgets everything, and remembers this instead."""

    @abstractmethod
    def news(self) -> list[Entry]:
        """What was added since :meth:`recall` or the last :meth:`settle`."""

    @abstractmethod
    def settle(self) -> None:
        """What was new is stored now."""

    @abstractmethod
    def entries(self) -> Iterable[Entry]:
        """All that still matters."""

    @abstractmethod
    def is_over(self, number: int, at_ns: int) -> bool:
        """Whether what was remembered then matters no more."""
