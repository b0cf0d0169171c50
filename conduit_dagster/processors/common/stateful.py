"""Processors with state from earlier steps, which is committed with each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array

from conduit_dagster.sdk import Processor

Key = int | str | bytes


class Entries:
    """Stored entries, in order, as columns: an object per entry would take much more memory and time."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.owners = array("q")
        """Number that identifies each entry's record, the same for every attempt."""
        self.numbers = array("q")
        """Ordinal of each entry's record among the records with a key, from 1, over all steps; ascending."""
        self.at_ns = array("q")
        """Times of the steps."""

    def __len__(self) -> int:
        return len(self.keys)

    def extend(self, keys: list[Key], owners: array[int], numbers: array[int], at_ns: array[int]) -> None:
        """Append columns of equal length."""
        self.keys.extend(keys)
        self.owners.extend(owners)
        self.numbers.extend(numbers)
        self.at_ns.extend(at_ns)

    def since(self, place: int) -> Entries:
        """Return a copy of the entries from index ``place`` on."""
        made = Entries()
        made.extend(self.keys[place:], self.owners[place:], self.numbers[place:], self.at_ns[place:])
        return made

    def forget(self, count: int) -> None:
        """Remove the first ``count`` entries."""
        del self.keys[:count], self.owners[:count], self.numbers[:count], self.at_ns[:count]


class StatefulProcessor(Processor, ABC):
    """A processor whose result for a record depends on earlier records, in the pipeline's order.

    The engine runs it in one task, restores its state before each step, and stores new entries with the step: a
    repeated step starts with the same state, and a step that did not count leaves nothing behind.
    """

    count: int = 0
    """Number of records with a key received so far, over all steps."""

    @property
    @abstractmethod
    def basis(self) -> str:
        """Definition of the keys. Entries stored under another definition are discarded."""

    @abstractmethod
    def recall(self, count: int, entries: Entries) -> None:
        """Replace the whole state by this count and these entries."""

    @abstractmethod
    def news(self) -> Entries:
        """Return the entries added since :meth:`recall` or the last :meth:`settle` that still matter."""

    @abstractmethod
    def settle(self) -> None:
        """Mark the new entries as stored."""

    @abstractmethod
    def entries(self) -> Entries:
        """Return all entries that still matter, and forget the earlier ones."""

    @abstractmethod
    def forget(self, number: int) -> None:
        """Forget all entries up to this number, whether they still matter or not."""

    @abstractmethod
    def is_over(self, number: int, at_ns: int) -> bool:
        """Return whether an entry with this number and time no longer matters."""
