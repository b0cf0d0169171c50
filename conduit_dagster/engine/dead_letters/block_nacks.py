"""The nacks of one block, by the place of the source record: at most one each (DELIVERY.md, One step)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from conduit_dagster.record import Nack, Record, copy
from conduit_dagster.sdk import Block


class Nacked(NamedTuple):
    """A record that was nacked."""

    rank: int
    """Of the destination behind which it was, its place in the file from 1; 0: before the fan-out."""
    node: str
    nack: Nack
    record: Record
    """As it was then."""
    stands: bool
    """A dead letter for which there was no way, so that it came to no node."""


class BlockNacks:
    """Remembers the first nack of each record in file order, and every destination that has no copy of it."""

    def __init__(self, block: Block) -> None:
        self._complete = block.complete
        self._of: dict[int, Nacked] = {}
        self._missed: dict[int, set[int]] = {}
        self._pieces: set[int] = set()

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, place: int) -> bool:
        return place in self._of

    def __iter__(self) -> Iterator[tuple[int, Nacked]]:
        """In the order of the records."""
        return ((place, self._of[place]) for place in self.places())

    def places(self) -> list[int]:
        """Of the nacked records, in order."""
        return sorted(self._of)

    def add(self, place: int, rank: int, node: str, nack: Nack, record: Record, stands: bool = False) -> None:
        """A nack; of two copies that fail, that of the first node in file order counts."""
        missed = self._missed.setdefault(place, set())
        if rank in missed:
            self._pieces.add(place)  # two copies of it fail in one place
        missed.add(rank)
        known = self._of.get(place)
        if known is None or rank < known.rank:
            if self._complete is not None:
                self._complete(place, record)
            self._of[place] = Nacked(rank, node, nack, copy(record), stands)

    def went_on(self, rank: int, places: Iterable[int]) -> None:
        """Behind this rank copies of these records go on: one that has failed there too can't be sent again whole."""
        if self._of and not isinstance(places, range):
            self._pieces.update(place for place in self._of.keys() & set(places) if rank in self._missed[place])

    def missed(self, place: int) -> Sequence[int]:
        """The ranks of the destinations that have no copy of it; 0 stands for all of them."""
        return sorted(self._missed[place])

    def in_pieces(self, place: int) -> bool:
        """Whether a part of it failed, and another one went on or failed as well."""
        return place in self._pieces

    def say(self, place: int, nack: Nack) -> None:
        """Another text for a record's nack."""
        self._of[place] = self._of[place]._replace(nack=nack)
