"""What a processor is that looks back on records of steps before: what it remembers is committed with each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array

from conduit_dagster.sdk import Processor

Key = int | str | bytes


class Entries:
    """What is remembered, in order, as columns: an object for each would take much more memory, and time."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.owners = array("q")
        """A name of the record that each is of, the same for every attempt."""
        self.numbers = array("q")
        """Which of the records with a key, from 1, over all steps: ascending."""
        self.at_ns = array("q")
        """The times of the steps."""

    def __len__(self) -> int:
        return len(self.keys)

    def extend(self, keys: list[Key], owners: array[int], numbers: array[int], at_ns: array[int]) -> None:
        """Appends columns of the same length."""
        self.keys.extend(keys)
        self.owners.extend(owners)
        self.numbers.extend(numbers)
        self.at_ns.extend(at_ns)

    def since(self, place: int) -> Entries:
        """A copy from a place on."""
        made = Entries()
        made.extend(self.keys[place:], self.owners[place:], self.numbers[place:], self.at_ns[place:])
        return made

    def forget(self, count: int) -> None:
        """Removes the first ones."""
        del self.keys[:count], self.owners[:count], self.numbers[:count], self.at_ns[:count]


class Remembering(Processor, ABC):
    """What it gives for a record depends on the records before, in the pipeline's order.

    The engine runs it in one task, hands it before each step what it has remembered until then, and stores what is new
    with the step: a step that is repeated meets the same memory, and one that did not count leaves nothing in it.
    """

    count: int = 0
    """Records with a key that came to it, over all steps."""

    @property
    @abstractmethod
    def basis(self) -> str:
        """What the keys are of. What was remembered on another one is forgotten."""

    @abstractmethod
    def recall(self, count: int, entries: Entries) -> None:
        """Forgets everything, and remembers this instead."""

    @abstractmethod
    def news(self) -> Entries:
        """What was added since :meth:`recall` or the last :meth:`settle`, and still matters."""

    @abstractmethod
    def settle(self) -> None:
        """What was new is stored now."""

    @abstractmethod
    def entries(self) -> Entries:
        """All that still matters. What came before is forgotten."""

    @abstractmethod
    def forget(self, number: int) -> None:
        """Forgets what came up to this one, over or not."""

    @abstractmethod
    def is_over(self, number: int, at_ns: int) -> bool:
        """Whether what was remembered then matters no more."""
