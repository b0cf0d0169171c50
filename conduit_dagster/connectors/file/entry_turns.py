"""Entries of a folder with many files: finished files are examined in turns, unread ones when they are reached."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from conduit_dagster.connectors.file.file_state import FoundFile
from conduit_dagster.connectors.file.listing import FolderEntry, examine
from conduit_dagster.connectors.kept_lists import FinishedRows

EXAMINED_AT_ONCE = 1_000
"""Maximum number of finished files, and of unread ones, that one scan examines."""


class SortedEntries(NamedTuple):
    """Entries divided into finished files and others, with the input of that division."""

    entries: list[FolderEntry]
    finished: FinishedRows[Any]
    settled: list[tuple[int, int]]
    """Place and number of each entry that is a finished file."""
    numbers: set[int]
    others: Sequence[int]
    """Places of the other entries."""

    def at(self, turn: Iterable[tuple[int, int]]) -> list[FolderEntry]:
        """Return the entries of a turn and all that are not finished files, in reading order."""
        return [self.entries[place] for place in sorted([*self.others, *(place for place, _ in turn)])]


class EntryTurns:
    """Divides entries, and takes turns at those of finished files.

    The cost of a step does not depend on how many files were read: the division is repeated only if the folder was
    listed again, or a file came back from the lists.
    """

    def __init__(self) -> None:
        self._sorted: SortedEntries | None = None
        self._is_more_known = False
        self._turn = 0

    def forget(self) -> None:
        """Divide all entries again."""
        self._sorted = None

    def judge_again(self) -> None:
        """Check again the entries that were no finished files, after more is known about them."""
        self._is_more_known = True

    def sort(
        self,
        entries: list[FolderEntry],
        finished: FinishedRows[Any],
        active: Collection[int],
        number_of: Callable[[FolderEntry], int | None],
    ) -> SortedEntries:
        """Divide entries. ``number_of`` returns the number of an entry's finished file, except ``active`` ones.

        Once matched, an entry counts as that file until :meth:`forget`, a new listing, or a change of the file's row.
        """
        known = self._sorted
        if known is None or not self._goes_on(known, entries, finished, active):
            known = SortedEntries(entries, finished, [], set(), range(len(entries)))
        elif finished is known.finished and not self._is_more_known:
            return known
        settled, others = list[tuple[int, int]](), list[int]()
        for place in known.others:
            number = number_of(entries[place])
            if number is None:
                others.append(place)
            else:
                settled.append((place, number))
        known.numbers.update(number for _, number in settled)
        self._is_more_known = False
        # two ascending runs: sorting merges them cheaply
        self._sorted = SortedEntries(entries, finished, sorted([*known.settled, *settled]), known.numbers, others)
        return self._sorted

    def _goes_on(
        self, known: SortedEntries, entries: list[FolderEntry], finished: FinishedRows[Any], active: Collection[int]
    ) -> bool:
        """Return whether every entry matched with a finished file still is."""
        is_same = known.entries is entries and finished.extends(known.finished)
        return is_same and known.numbers.isdisjoint(active)

    def turn(self, known: SortedEntries) -> Sequence[tuple[int, int]]:
        """Return the place and number of the finished files whose turn it is."""
        settled = known.settled
        if len(settled) <= EXAMINED_AT_ONCE:
            return settled
        begin = self._turn if self._turn < len(settled) else 0
        self._turn = begin + EXAMINED_AT_ONCE
        return settled[begin : self._turn]


class ExaminedEntries:
    """Entries in reading order. Entries that may be known files are examined, and the first ones of the others."""

    def __init__(self, entries: Sequence[FolderEntry], may_be_known: Callable[[FolderEntry], bool]) -> None:
        self._entries = entries
        self._looked: dict[str, FoundFile | None] = {}
        unknown = 0
        for entry in entries:
            if not may_be_known(entry):
                unknown += 1
                if unknown > EXAMINED_AT_ONCE:
                    continue
            self._looked[entry[0]] = examine(entry[0])

    @property
    def files(self) -> list[FoundFile]:
        """The examined files; a file with two names once."""
        once: dict[str, FoundFile] = {}
        for found in self._looked.values():
            if found is not None:
                once.setdefault(found.ident, found)
        return list(once.values())

    def in_order(
        self, new: Iterable[FoundFile], accepts: Callable[[FolderEntry, FoundFile], bool]
    ) -> Iterator[FoundFile]:
        """Yield the ``new`` ones of the examined files, and the accepted ones of the others, examined when reached."""
        found = {file.url: file for file in new}
        for entry in self._entries:
            if entry[0] in self._looked:
                file = found.get(entry[0])
            elif (file := examine(entry[0])) is not None and not accepts(entry, file):
                file = None
            if file is not None:
                yield file
