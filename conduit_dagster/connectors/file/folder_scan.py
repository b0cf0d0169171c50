"""Scans of a folder with many files: finished files are examined in turns, unread ones when they are reached."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from conduit_dagster.connectors.file.file_position import FilePosition, FinishedFiles
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile
from conduit_dagster.connectors.file.listing import FolderEntries, FolderEntry, examine
from conduit_dagster.connectors.file.open_file import FileChanged
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


_MISTAKES: Final = 2
"""Tolerated number of files whose inode differs from their entry: they may have been replaced between two system calls.
"""


class FolderLook(NamedTuple):
    """The entries of a folder in one scan."""

    examined: list[FoundFile]
    """Files that the position may know, those whose turn it is, and the first of the others."""
    entries: ExaminedEntries
    """Entries in reading order, without finished files whose turn it is not."""
    newest: FoundFile | None
    """The last file in reading order."""
    distrust: Callable[[], None]
    """Called when a file's inode differs from its entry."""

    def unknown(self, new: list[FoundFile]) -> Iterator[FoundFile]:
        """Yield the new files in reading order: ``new`` ones that were examined, and others, examined on the way.

        Raises ``FileChanged`` if a file does not match its entry: it may be a known one.
        """
        return self.entries.in_order(new, self._is_as_told)

    def _is_as_told(self, entry: FolderEntry, file: FoundFile) -> bool:
        # no file that the position knows has the inodes of entries that were not examined
        if file.inode != entry[1]:
            self.distrust()
            raise FileChanged
        return True


class FolderLooks:
    """Scans of one folder or glob. Caches the entries that are finished, unchanged files."""

    def __init__(self, entries: FolderEntries) -> None:
        self._entries, self._turns = entries, EntryTurns()
        self._settled: dict[str, tuple[int, TrackedFile]] = {}
        """By path: the inode of an entry, and its file's row in the lists."""
        self._mistaken = 0
        self._last_paths: tuple[list[FolderEntry], dict[str, str]] | None = None

    def _distrust(self) -> None:
        self._mistaken += 1

    def forget(self) -> None:
        """Examine every file in the next scan."""
        self._settled.clear()
        self._turns.forget()
        self._entries.forget()

    def settle(self, found: FoundFile, row: TrackedFile) -> None:
        """Cache that the file at a path is finished, and matches its row in the lists."""
        known = self._settled.get(found.url)
        if known == (found.inode, row):
            return
        self._settled[found.url] = found.inode, row
        if known is None:
            self._turns.judge_again()
        else:
            self._turns.forget()

    @property
    def entries(self) -> list[FolderEntry]:
        """The current entries: the same list until the folder is listed again."""
        return self._entries.newest()

    def inodes(self) -> set[int]:
        """Return the inodes of the entries. On some file systems these differ from the inodes of the files."""
        return {inode for _, inode in self._entries.newest() if inode}

    def homes(self) -> set[str]:
        """Return the folders of the entries, and those that links among them lead to."""
        paths = self._entries.newest()
        links = (os.path.realpath(path) for path, inode in paths if not inode)
        return self._entries.folders() | {str(Path(path).parent) for path in links}

    def last_paths(self, collection_of: Callable[[str], str]) -> dict[str, str]:
        """Return the last path in reading order of each collection, which depends on a file's name."""
        entries = self._entries.newest()
        if self._last_paths is None or self._last_paths[0] is not entries:
            self._last_paths = entries, {collection_of(path.rpartition("/")[2]): path for path, _ in entries}
        return self._last_paths[1]

    def look(self, position: FilePosition, finished: FinishedFiles) -> FolderLook:
        """List the entries, and examine those that may have changed."""
        entries = self._entries.newest()
        self._forget_gone(entries)
        active = {file.number for file in position.files}
        known = self._turns.sort(entries, finished, active, self._judge(finished, active))
        inodes = {file.inode for file in position.files}
        # on some file systems the inodes of entries differ from those of the files
        trusted = self._mistaken < _MISTAKES

        def may_be_known(entry: FolderEntry) -> bool:
            inode = entry[1]
            return not trusted or not inode or inode in inodes or finished.has(inode)

        examined = ExaminedEntries(known.at(self._turns.turn(known)), may_be_known)
        newest = next((found for path, _ in reversed(entries) if (found := examine(path)) is not None), None)
        return FolderLook(examined.files, examined, newest, self._distrust)

    def _judge(self, finished: FinishedFiles, active: set[int]) -> Callable[[FolderEntry], int | None]:
        settled, rows = self._settled, finished.rows

        def number_of(entry: FolderEntry) -> int | None:
            one = settled.get(entry[0])
            if one is None or one[0] != entry[1]:
                return None
            number = one[1].number
            # a row of another position proves nothing for this one
            return number if rows.get(number) is one[1] and number not in active else None

        return number_of

    def _forget_gone(self, entries: list[FolderEntry]) -> None:
        known = self._settled
        if len(known) > 2 * len(entries) + EXAMINED_AT_ONCE:
            self._settled = {path: known[path] for path, _ in entries if path in known}
