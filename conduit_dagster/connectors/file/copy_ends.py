"""End of the copy of each collection, which determines the mode of a file source's records (reference 4, Mode)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from conduit_dagster.connectors.file.listing import TrackedFile
from conduit_dagster.sdk import Split

MOST_ENDS: Final = 256
"""Maximum number of collections whose ends are in a position, to keep it small: records of further ones have no mode.
"""


class CopyEnd(NamedTuple):
    """The end of a collection's last record when all of its files had been read for the first time."""

    number: int
    """Number of the file."""
    offset: int
    line: int

    def is_within(self, files: Mapping[int, TrackedFile]) -> bool:
        """Return whether the record lies in the part of the files, by number, that was read."""
        return self.number in files and files[self.number].offset >= self.offset


CopyEnds = Mapping[str, CopyEnd]
"""Ends by collection."""


class Copied:
    """Collections that one step reads, and whose copies are not finished."""

    def __init__(self, ended: CopyEnds) -> None:
        self._ended, self._ends = ended, dict[str, CopyEnd]()
        self._unread = set[str]()

    def read(self, collection: str, after: TrackedFile) -> None:
        """Record that one of its files is read up to ``after``; files come in reading order."""
        if collection and collection not in self._ended:
            self._ends[collection] = CopyEnd(after.number, after.offset, after.line)

    def leave(self, collection: str) -> None:
        """Record that a part of the collection is not read."""
        self._unread.add(collection)

    @property
    def open(self) -> Collection[str]:
        """Collections whose copies may end with this step."""
        return self._ends.keys() - self._unread

    @property
    def ends(self) -> CopyEnds:
        """The ends after the step."""
        if not self.open:
            return self._ended
        fresh = {name: self._ends[name] for name in sorted(self.open)[: MOST_ENDS - len(self._ended)]}
        return {**self._ended, **fresh}


class CopyModes(NamedTuple):
    """Modes of the records of a range: ``copy``, ``complete`` for the last one of a copy; later ones need none."""

    before: CopyEnds
    after: CopyEnds

    def end_in(self, collection: str, number: int) -> CopyEnd | None:
        """Return the end of a collection's copy, if it lies in the range and in this file."""
        end = None if collection in self.before else self.after.get(collection)
        return end if end is not None and end.number == number else None

    def labelled(self, split: Split, collection: str, number: int) -> Split:
        """Return a split of this collection and file, with its mode. A copy's end never lies inside the split."""
        if not collection or collection in self.before or len(self.before) >= MOST_ENDS:
            return split
        end, detail = self.after.get(collection), split.detail
        if end is not None and (number, detail["from"][0]) >= (end.number, end.offset):
            return split
        detail["mode"] = "copy"
        detail["completes"] = end is not None and (number, detail["to"]) == (end.number, end.offset)
        return split
