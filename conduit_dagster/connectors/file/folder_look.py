"""Looks at a folder with many files, most of which were read completely: those are examined in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from conduit_dagster.connectors.file.file_position import FilePosition
from conduit_dagster.connectors.file.finished_files import FinishedFiles
from conduit_dagster.connectors.file.listing import FolderEntries, FolderEntry, FoundFile, TrackedFile, examine
from conduit_dagster.connectors.file.opened import FileChanged

EXAMINED_AT_ONCE = 2_000
"""Finished files that one look examines: of more than these, each one comes up again after a few looks."""
_MISTAKES: Final = 2
"""Files that may have another inode than their entries: they may have been replaced between two system calls."""


class FolderLook(NamedTuple):
    """The entries of a folder, as one look found them."""

    examined: list[FoundFile]
    """Files that the position may know, those whose turn it is, and the first of the others."""
    entries: list[FolderEntry]
    """Entries in reading order, without finished files whose turn it is not."""
    later: frozenset[str]
    """Paths of entries that were not examined yet: no file that the position knows has their inodes."""
    newest: FoundFile | None
    """The last file in reading order."""
    distrust: Callable[[], None]
    """Called when a file has another inode than its entry."""

    def unknown(self, new: list[FoundFile]) -> Iterator[FoundFile]:
        """Yield the new files in reading order: ``new`` of those that were examined, and the others, examined now.

        Raises ``FileChanged`` if a file is not the one that its entry told of: it may be a known one.
        """
        found = {file.url: file for file in new}
        for path, inode in self.entries:
            if path not in self.later:
                file = found.get(path)
            elif (file := examine(path)) is not None and file.inode != inode:
                self.distrust()
                raise FileChanged
            if file is not None:
                yield file


class _Sorted(NamedTuple):
    """Entries of a folder by what is known of them, and from what that follows."""

    basis: tuple[list[FolderEntry], FinishedFiles, frozenset[int], int]
    settled: list[int]
    """Places of the entries that are finished files, as they were when they were examined."""
    others: list[int]

    def is_of(self, entries: list[FolderEntry], finished: FinishedFiles, active: frozenset[int], changes: int) -> bool:
        """Return whether it follows from these, too."""
        basis = self.basis
        return basis[0] is entries and basis[1] is finished and basis[2:] == (active, changes)


class FolderLooks:
    """Looks at one folder or glob. Remembers which entries are finished files that were found unchanged."""

    def __init__(self, entries: FolderEntries) -> None:
        self._entries = entries
        self._settled: dict[str, tuple[int, TrackedFile]] = {}
        """By path: the inode of an entry, and its file as it is in the lists."""
        self._sorted: _Sorted | None = None
        self._turn = self._mistaken = self._changes = 0

    def _distrust(self) -> None:
        self._mistaken += 1

    def forget(self) -> None:
        """Examine every file at the next look."""
        self._settled.clear()
        self._changes += 1
        self._entries.forget()

    def settle(self, found: FoundFile, row: TrackedFile) -> None:
        """Remember that the file at a path is finished, and as it is in the lists."""
        if self._settled.get(found.url) != (found.inode, row):
            self._settled[found.url] = found.inode, row
            self._changes += 1

    def look(self, position: FilePosition, finished: FinishedFiles) -> FolderLook:
        """List the entries, and examine those that may be other than they were."""
        entries = self._entries.newest()
        left = self._turned(entries, self._sort(entries, position, finished))
        inodes = {file.inode for file in position.files}
        # some file systems tell other inodes for entries than for their files
        trusted = self._mistaken < _MISTAKES
        later, examined, unknown = set[str](), dict[str, FoundFile](), 0
        for path, inode in left:
            if trusted and inode and inode not in inodes and not finished.has(inode):
                unknown += 1
                if unknown > EXAMINED_AT_ONCE:
                    later.add(path)
                    continue
            found = examine(path)
            if found is not None:
                examined.setdefault(found.ident, found)
        newest = next((found for path, _ in reversed(entries) if (found := examine(path)) is not None), None)
        return FolderLook(list(examined.values()), left, frozenset(later), newest, self._distrust)

    def _sort(self, entries: list[FolderEntry], position: FilePosition, finished: FinishedFiles) -> _Sorted:
        active, known, rows = frozenset(file.number for file in position.files), self._settled, finished.rows
        if self._sorted is not None and self._sorted.is_of(entries, finished, active, self._changes):
            return self._sorted
        if len(known) > 2 * len(entries) + EXAMINED_AT_ONCE:
            known = self._settled = {path: known[path] for path, _ in entries if path in known}
        settled, others = list[int](), list[int]()
        for place, (path, inode) in enumerate(entries):
            one = known.get(path)
            # a row that is not this position's own says nothing of it
            is_settled = one is not None and one[0] == inode and rows.get(one[1].number) is one[1]
            (settled if is_settled and one is not None and one[1].number not in active else others).append(place)
        self._sorted = _Sorted((entries, finished, active, self._changes), settled, others)
        return self._sorted

    def _turned(self, entries: list[FolderEntry], known: _Sorted) -> list[FolderEntry]:
        """Return the entries, of the settled ones only those whose turn it is."""
        settled = known.settled
        if len(settled) <= EXAMINED_AT_ONCE:
            return entries
        begin = self._turn if self._turn < len(settled) else 0
        self._turn = begin + EXAMINED_AT_ONCE
        return [entries[place] for place in sorted([*known.others, *settled[begin : self._turn]])]
