"""Files that left their place, by a rename, compressed, or copied and truncated: where they are now."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple

from conduit_dagster import storage
from conduit_dagster.connectors.file.file_matching import (
    FileCopies,
    FileMatches,
    KnownFile,
    Match,
    by_slot,
    examine_content,
    slot_of,
)
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile
from conduit_dagster.connectors.file.finished_files import FinishedFiles
from conduit_dagster.connectors.file.listing import FolderEntry

_MOST: Final = 10_000
"""Number of files whose place is kept, besides those of the newest scans."""


class LastPlaces:
    """The last observed place of each tracked file."""

    def __init__(self, roots: Callable[[], set[str]]) -> None:
        """``roots``: returns the folders of the source's path, and those that its links lead to."""
        self._roots = roots
        self._found: dict[int, FoundFile] = {}
        """By number, the least recently seen first."""

    def seen(self, file: TrackedFile, found: FoundFile) -> None:
        """Keep where the file is now."""
        self._found.pop(file.number, None)
        self._found[file.number] = found

    def forget_oldest(self, needed: int) -> None:
        """Forget the oldest places beyond the limit: a step in flight needs the ``needed`` ones of its own files."""
        if len(self._found) > _MOST + 2 * needed:
            self._found = dict(list(self._found.items())[-_MOST:])

    def of(self, file: TrackedFile) -> list[FoundFile]:
        """Return where the last scan found the file; empty if it did not."""
        found = self._found.get(file.number)
        return [] if found is None or not file.may_be(found) else [found]

    def strayed(self, files: Collection[TrackedFile]) -> list[FoundFile]:
        """Return these files where a rename took them: out of the glob, or beside the file that a link leads to."""
        wanted, found = {file.inode for file in files if file.inode and file.birth}, list[FoundFile]()
        for folder in self.homes(files) if wanted else ():
            try:
                with os.scandir(folder) as entries:
                    mine = (one for one in entries if one.inode() in wanted)
                    paths = [one.path for one in mine if one.is_file(follow_symlinks=False)]
            except OSError:
                continue
            found.extend(file for path in paths if (file := examine_content(path)) is not None)
        return found

    def homes(self, files: Collection[TrackedFile]) -> set[str]:
        """Return the folders in which these files may be."""
        last = (self._found[file.number].url for file in files if file.number in self._found)
        return self._roots().union(*(homes_of(path) for path in last))


def homes_of(path: str) -> set[str]:
    """Return the folder of a file, and that of the file that it leads to if it is a link; empty for a remote one."""
    if not storage.is_local(path):
        return set()
    return {str(Path(place).parent) for place in (path, os.path.realpath(path))}


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
