"""A file source's position: how far each file is read, the lists with fully read files, and the ends of copies.

The end of a collection's copy determines the mode of its records (reference 4, Mode). The lists are kept outside the
position, which names them by digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from conduit_dagster.connectors import kept_lists
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile
from conduit_dagster.connectors.kept_lists import FinishedLists, FinishedRows, KeptLists, PositionWithLists
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.sdk import ConnectorContext, Split

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


_OBSERVED = ("size", "modified", "changed", "birth", "ahead", "ahead_mark")
"""Fields that may differ between observations: not part of a place, which goes into the delivery hash."""
_NAMED = 8
"""Maximum number of files that a place names individually; more are digested."""


class FilePosition(PositionWithLists, frozen=True):
    """Position of a file source: the tracked files that still matter, in reading order."""

    files: tuple[TrackedFile, ...] = ()
    copied: Mapping[str, CopyEnd] = msgspec.field(default_factory=dict)
    """Ends of the finished copies, by collection. Not part of a place, so that delivery hashes do not depend on it."""

    def with_back(self, files: Mapping[int, TrackedFile], back: Sequence[TrackedFile]) -> FilePosition:
        """Return :meth:`with_files`. ``back``: those of them that are in the lists, with their state there."""
        found, read = self.with_files(files), self.read and self.read.moved((), back)
        every = sorted(found.files, key=lambda file: file.number) if back else found.files
        return msgspec.structs.replace(found, files=tuple(every), read=read)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        copied = {"copied": {name: [*end] for name, end in self.copied.items()}} if self.copied else {}
        return {**super().as_json(), **copied}


def parse_position(value: Any) -> FilePosition:
    """Return the position from its stored JSON value."""
    return msgspec.convert(value, FilePosition)


def place_of(value: Any) -> dict[str, Any]:
    """Return a stored position without observed fields, which may differ at the next observation."""
    position = parse_position(value)
    if position.read is not None:
        return {"seen": position.seen, "sum": position.read.place(position.files)}
    rows = [msgspec.structs.asdict(file) for file in position.files]
    files = [{k: v for k, v in row.items() if k not in _OBSERVED} for row in rows]
    if len(files) <= _NAMED:
        return {"seen": position.seen, "files": files}
    # each consumer's delivery hash covers all of it
    return {"seen": position.seen, "files": hashlib.sha256(msgspec.json.encode(files)).hexdigest()}


learn(FilePosition, FinishedLists)


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


class FileRange(NamedTuple):
    """The range between two positions: each file with a non-empty part in it, in reading order.

    The mode of its records is ``copy``, or ``complete`` for the last one of a copy; later ones need none.
    """

    start: FilePosition
    end: FilePosition
    files: Sequence[tuple[TrackedFile, TrackedFile]]
    """Each file at the start and at the end of its part."""

    def copy_end(self, collection: str, number: int) -> CopyEnd | None:
        """Return the end of a collection's copy, if it lies in the range and in this file."""
        end = None if collection in self.start.copied else self.end.copied.get(collection)
        return end if end is not None and end.number == number else None

    def with_mode(self, split: Split, collection: str, number: int) -> Split:
        """Return a split of this collection and file, with its mode. A copy's end never lies inside the split."""
        before, detail = self.start.copied, split.detail
        if not collection or collection in before or len(before) >= MOST_ENDS:
            return split
        end = self.end.copied.get(collection)
        if end is not None and (number, detail["from"][0]) >= (end.number, end.offset):
            return split
        detail["mode"] = "copy"
        detail["completes"] = end is not None and (number, detail["to"]) == (end.number, end.offset)
        return split


class FileLists(KeptLists[TrackedFile, FinishedFiles]):
    """Lists of the finished files of a folder or glob."""

    def __init__(self, context: ConnectorContext) -> None:
        super().__init__(context, TrackedFile, NO_FILES)

    def range(self, start: Any, end: Any) -> FileRange:
        """Return the range between two stored positions.

        Files are looked up in the lists of both as well: one that grew continues at its recorded end.
        """
        first, last = parse_position(start), parse_position(end)
        before = {file.number: file for file in first.files}
        # no file has left a position without lists
        finished, later = (self.of(first), self.of(last)) if first.read or last.read else (NO_FILES, NO_FILES)
        parts = [
            (before.get(file.number) or finished.rows.get(file.number) or _unread(file), file)
            for file in _at(last, finished, later)
        ]
        return FileRange(first, last, [(_observed(a, b), b) for a, b in parts if b.offset > a.offset])

    def back(self, position: FilePosition, numbers: Iterable[int]) -> list[TrackedFile]:
        """Return the files with these numbers that a position has only in its lists."""
        active, finished = {file.number for file in position.files}, self.of(position)
        return [row for number in numbers if number not in active and (row := finished.rows.get(number)) is not None]

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


def _unread(file: TrackedFile) -> TrackedFile:
    return TrackedFile(file.name, file.number, file.inode)


def _observed(first: TrackedFile, last: TrackedFile) -> TrackedFile:
    """Return a file at its part's start, with the later observation at the end: the one to compare the file with."""
    return msgspec.structs.replace(
        first,
        inode=last.inode,
        birth=last.birth,
        modified=last.modified,
        changed=last.changed,
        ahead=last.offset,
        ahead_mark=last.mark,
    )


def _at(end: FilePosition, before: FinishedFiles, finished: FinishedFiles) -> Iterable[TrackedFile]:
    """Return the files of a position, and those in its lists that differ from the lists ``before``."""
    if finished is before:
        return end.files
    here = {file.number for file in end.files}
    # rows in both lists are the same object, unless the lists were loaded separately
    rows = (row for number, row in finished.rows.items() if before.rows.get(number) is not row)
    later = [row for row in rows if row.number not in here]
    return sorted([*later, *end.files], key=lambda file: file.number) if later else end.files


def cut_at(cut: TrackedFile, last: TrackedFile) -> TrackedFile:
    """Return a file at a boundary inside its range, with the observations made at the range's end."""
    is_behind = bool(last.ahead)
    return msgspec.structs.replace(
        cut,
        inode=last.inode,
        unended=last.unended and cut.offset == last.offset,
        size=last.size,
        modified=last.modified,
        changed=last.changed,
        birth=last.birth,
        ahead=last.ahead if is_behind else last.offset,
        ahead_mark=last.ahead_mark if is_behind else last.mark,
    )
