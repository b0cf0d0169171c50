"""Nacks of one block, at most one per source record, by the record's place (DELIVERY.md, One step)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from conduit_dagster.record import Nack, Record, copy
from conduit_dagster.sdk import Block


class Nacked(NamedTuple):
    """A record that was nacked."""

    rank: int
    """Rank of the destination on whose branch it was nacked: its place in the file, from 1; 0: before the fan-out."""
    node: str
    nack: Nack
    record: Record
    """The record as it was when it was nacked."""
    stands: bool
    """Whether it is a replayed dead letter that had no route and so reached no node."""


class BlockNacks:
    """First nack of each record in file order, and every destination that has no copy of the record."""

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
        """Iterate over places and nacks in record order."""
        return ((place, self._of[place]) for place in self.places())

    def places(self) -> list[int]:
        """Return the places of the nacked records, in order."""
        return sorted(self._of)

    def add(self, place: int, rank: int, node: str, nack: Nack, record: Record, stands: bool = False) -> None:
        """Add a nack; if two copies of a record fail, that of the first node in file order counts."""
        missed = self._missed.setdefault(place, set())
        if rank in missed:
            self._pieces.add(place)  # two copies of it fail on one branch
        missed.add(rank)
        known = self._of.get(place)
        if known is None or rank < known.rank:
            if self._complete is not None:
                self._complete(place, record)
            self._of[place] = Nacked(rank, node, nack, copy(record), stands)

    def went_on(self, rank: int, places: Iterable[int]) -> None:
        """Note that copies of these records passed this rank: one that also failed there can't be replayed whole."""
        if self._of and not isinstance(places, range):
            self._pieces.update(place for place in self._of.keys() & set(places) if rank in self._missed[place])

    def missed(self, place: int) -> Sequence[int]:
        """Return the ranks of the destinations without a copy of the record; 0 stands for all of them."""
        return sorted(self._missed[place])

    def in_pieces(self, place: int) -> bool:
        """Return whether a piece of the record failed while another one passed or failed too."""
        return place in self._pieces

    def say(self, place: int, nack: Nack) -> None:
        """Replace a record's nack, to change its text."""
        self._of[place] = self._of[place]._replace(nack=nack)
