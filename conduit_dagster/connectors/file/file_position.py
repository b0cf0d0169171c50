"""A file source's position: how far each file is read, the lists with fully read files, and the ends of copies.

The end of a collection's copy determines the mode of its records (reference 4, Mode).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from conduit_dagster.connectors.file.file_state import TrackedFile
from conduit_dagster.connectors.kept_lists import FinishedLists, PositionWithLists
from conduit_dagster.msgspec_warmup import learn
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


_OBSERVED = ("size", "modified", "changed", "birth", "ahead", "ahead_mark")
"""Fields that may differ between observations: not part of a place, which goes into the delivery hash."""
_NAMED = 8
"""Maximum number of files that a place names individually; more are digested."""


class FilePosition(PositionWithLists, frozen=True):
    """Position of a file source: the tracked files that still matter, in reading order."""

    files: tuple[TrackedFile, ...] = ()
    copied: Mapping[str, CopyEnd] = msgspec.field(default_factory=dict)
    """Ends of the finished copies, by collection. Not part of a place, so that delivery hashes do not depend on it."""

    def with_files(self, files: Mapping[int, TrackedFile], back: Iterable[TrackedFile] = ()) -> FilePosition:
        """Return the position with these files in their new states, new ones at the end.

        ``back``: those of them that are in the lists, with their state there.
        """
        kept = [files.get(file.number, file) for file in self.files]
        known = {file.number for file in self.files}
        fresh = [file for number, file in files.items() if number not in known]
        every, back = [*kept, *fresh], list(back)
        if back:
            every.sort(key=lambda file: file.number)
        read = self.read.moved((), back) if self.read is not None else None
        seen = max([self.seen, *(file.number + 1 for file in fresh)])
        return msgspec.structs.replace(self, seen=seen, files=tuple(every), read=read)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        value: dict[str, Any] = {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}
        if self.read is not None:
            value["read"] = self.read.as_json()
        if self.copied:
            value["copied"] = {name: [*end] for name, end in self.copied.items()}
        return value

    def place(self) -> dict[str, Any]:
        """Return the position without observed fields, which may differ at the next observation."""
        if self.read is not None:
            return {"seen": self.seen, "sum": self.read.place(self.files)}
        rows = [msgspec.structs.asdict(file) for file in self.files]
        files = [{k: v for k, v in row.items() if k not in _OBSERVED} for row in rows]
        if len(files) <= _NAMED:
            return {"seen": self.seen, "files": files}
        # each consumer's delivery hash covers all of it
        return {"seen": self.seen, "files": hashlib.sha256(msgspec.json.encode(files)).hexdigest()}


def parse_position(value: Any) -> FilePosition:
    """Return the position from its stored JSON value."""
    return msgspec.convert(value, FilePosition)


learn(FilePosition, FinishedLists)
