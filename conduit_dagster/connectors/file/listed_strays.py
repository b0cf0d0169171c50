"""Files of the lists that left their folder with unread lines: by a rename, compressed, or copied and truncated."""

from __future__ import annotations

from typing import Final, NamedTuple

from conduit_dagster.connectors.file.file_copies import FileCopies, examine_content
from conduit_dagster.connectors.file.file_matching import FileMatches, KnownFile, Match, by_slot, slot_of
from conduit_dagster.connectors.file.finished_files import FinishedFiles
from conduit_dagster.connectors.file.last_places import LastPlaces
from conduit_dagster.connectors.file.listing import FolderEntry, TrackedFile

_ATTEMPTS: Final = 2
"""Number of times that a file is sought: one that is being renamed may be missed once."""


class _Sought(NamedTuple):
    """What the files were sought with; with the same, they are where they were."""

    entries: list[FolderEntry]
    finished: FinishedFiles
    replaced: set[int]

    def is_as(self, other: _Sought) -> bool:
        same = self.entries is other.entries and self.finished is other.finished
        return same and self.replaced == other.replaced


class ListedStrays:
    """Files of the lists that are not, or no longer whole, among the entries of one folder or glob."""

    def __init__(self, matches: FileMatches, places: LastPlaces, copies: FileCopies) -> None:
        self._matches, self._places, self._copies = matches, places, copies
        self._sought: _Sought | None = None
        self._found: list[KnownFile] = []
        self._vain: dict[int, int] = {}
        """By number of a file: how often it was sought in vain."""

    def unread(self, entries: list[FolderEntry], finished: FinishedFiles, replaced: set[int]) -> list[KnownFile]:
        """Return those with unread lines, where they are now. They are sought again if something has changed.

        ``replaced``: numbers of files of the lists whose inode has other content.
        """
        now = _Sought(entries, finished, replaced)
        if self._sought is None or not self._sought.is_as(now):
            inodes = {inode for _, inode in entries}
            rows = finished.rows.values()
            self._found = self._seek([row for row in rows if row.inode not in inodes or row.number in replaced])
            self._sought = now
        found = ((file, examine_content(seen.url)) for file, seen in self._found)
        return [(file, seen) for file, seen in found if seen is not None and file.may_be(seen)]

    def _seek(self, absent: list[TrackedFile]) -> list[KnownFile]:
        vain = self._vain
        wanted = [row for row in absent if vain.get(row.number, 0) < _ATTEMPTS]
        found = self._matching(wanted) if wanted else {}
        missed = {row.number for row in wanted} - found.keys()
        self._vain = {row.number: vain.get(row.number, 0) + (row.number in missed) for row in absent}
        return [(match.file, match.found) for match in found.values() if match.found.size > match.file.offset]

    def _matching(self, wanted: list[TrackedFile]) -> dict[int, Match]:
        """Return the places of the existing files, by number."""
        places, copies = by_slot(self._places.strayed(wanted), wanted), self._copies.of(wanted)
        found = dict[int, Match]()
        for file in wanted:
            match = self._matches.match(file, places.get(slot_of(file), ()))
            if match := match or self._matches.copied(file, copies.of(file)):
                found[file.number] = match
        return found
