"""Fully read files: kept in lists outside the position, which names the lists by digest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from conduit_dagster.connectors import kept_lists
from conduit_dagster.connectors.file.file_position import FilePosition
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile
from conduit_dagster.connectors.kept_lists import FinishedLists, FinishedRows, KeptLists
from conduit_dagster.sdk import ConnectorContext

Alive = Callable[[Collection[TrackedFile]], Collection[int]]
"""Returns the numbers of the given files that still exist."""


class FinishedFiles(FinishedRows[TrackedFile]):
    """The files in the lists of one position, by inode. Immutable."""

    def settled(self, found: FoundFile, active: Collection[int]) -> TrackedFile | None:
        """Return the row of the found file if it has not changed since; ``active``: numbers to leave out.

        No tool can set an inode's change time, so equal states mean equal content.
        """
        for row in self.at(found.inode):
            if (
                row.changed == found.changed
                and row.size == found.size
                and row.modified == found.modified
                and row.birth == found.birth
                and row.number not in active
            ):
                return row
        return None

    def may_be(self, found: FoundFile, active: Collection[int]) -> list[TrackedFile]:
        """Return the rows that a found file may match, newest first, without ``active`` numbers."""
        rows = [row for row in self.at(found.inode) if row.number not in active and row.may_be(found)]
        return sorted(rows, key=lambda row: -row.number)


def void(number: int) -> TrackedFile:
    """Return a row that hides an earlier one, of a file that was rewritten, or dropped under a later state."""
    return TrackedFile("", number, 0)


NO_FILES: Final = FinishedFiles({}, {})


class FileStates(NamedTuple):
    """Scan results for the files that a position knows."""

    here: Mapping[int, FoundFile]
    """Current location of the existing files, by number."""
    gone: Sequence[TrackedFile]
    """Files of the position that no longer exist."""
    listed: Sequence[TrackedFile]
    """Files of the lists that changed, but not in the part already read."""
    untrue: Sequence[TrackedFile]
    """Files of the lists that no longer contain it, or had other content since."""

    def finished(self, file: TrackedFile) -> Iterator[TrackedFile]:
        """Yield the file with its newest observations, if it is fully read and no other file can be mistaken for it."""
        found = self.here[file.number]
        is_read = file.size == file.offset == found.size and file.ahead <= file.offset
        # without a birth time, the next file that reuses the inode would be mistaken for the deleted one, forever
        if is_read and not found.unpacked and file.inode and file.birth and file.birth == found.birth:
            yield msgspec.structs.replace(file, modified=found.modified, changed=found.changed)


class FileLists(KeptLists[TrackedFile, FinishedFiles]):
    """Lists of the finished files of a folder or glob."""

    def __init__(self, context: ConnectorContext) -> None:
        super().__init__(context, TrackedFile, NO_FILES)

    def back(self, position: FilePosition, numbers: Iterable[int]) -> list[TrackedFile]:
        """Return the files with these numbers that a position has only in its lists."""
        active, finished = {file.number for file in position.files}, self.of(position)
        return [row for number in numbers if number not in active and (row := finished.find(number)) is not None]

    def left(self, position: FilePosition, states: FileStates, changed: Collection[int], alive: Alive) -> FilePosition:
        """Return the position without its finished files, after they are stored durably in a list.

        ``changed``: numbers of the files that the step reads, which stay. ``alive`` returns the files to keep when all
        lists are merged.
        """
        finished, read = self.of(position), position.read or FinishedLists()
        leaving = [row for file in position.files if file.number not in changed for row in states.finished(file)]
        if len(leaving) < kept_lists.LEAVES_AT:
            leaving = []
        gone = {file.number for file in states.gone}
        # an outdated row must not match again: the file's next content may begin like the old one
        hidden = [void(number) for number in gone if number in finished.rows]
        hidden += [void(file.number) for file in states.untrue]
        read = read.moved([*leaving, *states.gone], ())
        if leaving or hidden:
            again = [row for file in states.listed if file.number not in changed for row in states.finished(file)]
            read = self.added(read, [*leaving, *hidden, *again], lambda view: _gone(view, alive))
        numbers = {row.number for row in leaving}
        files = tuple(file for file in position.files if file.number not in numbers)
        return msgspec.structs.replace(position, files=files, read=read)


def _gone(view: FinishedFiles, alive: Alive) -> list[int]:
    existing = set(alive(view.rows.values()))
    return [number for number in view.rows if number not in existing]
