"""Files that were read completely: kept in lists outside the position, which names the lists by digest."""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from conduit_dagster.connectors.file.file_position import FilePosition, FinishedLists
from conduit_dagster.connectors.file.listing import FoundFile, TrackedFile
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext, KeptValues

LEAVES_AT = 64
"""Finished files that may stay in the position: with fewer a list would be written for every few files."""
_VIEWS: Final = 4
"""Positions whose lists are held in memory: the newest one, and those of earlier steps in flight."""
Alive = Callable[[Collection[TrackedFile]], Collection[int]]
"""Returns the numbers of those files that still exist."""


class FinishedFiles:
    """The files in the lists of one position. Immutable."""

    def __init__(self, rows: Mapping[int, TrackedFile], slots: Mapping[int, tuple[int, ...]]) -> None:
        """``rows``: each file's newest row by number; ``slots``: numbers by inode."""
        self.rows, self._slots = rows, slots

    def find(self, number: int) -> TrackedFile | None:
        """Return the file with this number, as it was when it was read completely."""
        return self.rows.get(number)

    def has(self, inode: int) -> bool:
        """Return whether one of these files has, or had, this inode."""
        return inode in self._slots

    def settled(self, found: FoundFile, active: Collection[int]) -> TrackedFile | None:
        """Return the file that the found one is, if it is unchanged since; ``active``: numbers to leave out.

        No tool can set the time of an inode's last change, so an equal state means equal content.
        """
        for number in self._slots.get(found.inode, ()):
            row = self.rows[number]
            if (
                row.changed == found.changed
                and row.size == found.size
                and row.modified == found.modified
                and row.birth == found.birth
                and number not in active
            ):
                return row
        return None

    def may_be(self, found: FoundFile, active: Collection[int]) -> list[TrackedFile]:
        """Return the files that a found one may be, newest first, without those whose numbers are ``active``."""
        rows = [self.rows[number] for number in self._slots.get(found.inode, ()) if number not in active]
        return sorted((row for row in rows if row.may_be(found)), key=lambda row: -row.number)

    def with_rows(self, rows: Iterable[TrackedFile], dropped: Iterable[int] = ()) -> FinishedFiles:
        """Return them with later rows, and without those with the numbers ``dropped``."""
        every, slots = dict(self.rows), dict(self._slots)
        for row in rows:
            _remove(row.number, every, slots)
            if not _is_void(row):
                every[row.number] = row
                slots[row.inode] = (*slots.get(row.inode, ()), row.number)
        for number in dropped:
            _remove(number, every, slots)
        return FinishedFiles(every, slots)


def _remove(number: int, rows: dict[int, TrackedFile], slots: dict[int, tuple[int, ...]]) -> None:
    row = rows.pop(number, None)
    if row is not None:
        left = tuple(one for one in slots.pop(row.inode) if one != number)
        if left:
            slots[row.inode] = left


def void(number: int) -> TrackedFile:
    """Return a row that hides an earlier one: of a file that was rewritten, or dropped under a later state."""
    return TrackedFile("", number, 0)


def _is_void(row: TrackedFile) -> bool:
    return not row.inode


NO_FILES: Final = FinishedFiles({}, {})


class FileStates(NamedTuple):
    """What a look found of the files that a position knows."""

    here: Mapping[int, FoundFile]
    """Where those that exist are, by number."""
    gone: Sequence[TrackedFile]
    """Files of the position that do not exist."""
    listed: Sequence[TrackedFile]
    """Files of the lists that changed, and still hold what was read from them."""
    untrue: Sequence[TrackedFile]
    """Files of the lists that do not hold it any more, or had another content since."""

    def finished(self, file: TrackedFile) -> Iterator[TrackedFile]:
        """Yield the file with its newest observations, if it is read completely, and no other file can ever be it."""
        found = self.here[file.number]
        is_read = file.size == file.offset == found.size and file.ahead <= file.offset
        # without a birth time, the next file that gets the inode would be taken for a deleted one, for ever
        if is_read and file.inode and file.birth and file.birth == found.birth:
            yield msgspec.structs.replace(file, modified=found.modified, changed=found.changed)


class FileLists:
    """Lists of finished files in the state store. A list never changes; its digest is its name."""

    def __init__(self, context: ConnectorContext) -> None:
        self._context = context
        self._kept: KeptValues | None = None
        self._views: OrderedDict[tuple[str, ...], FinishedFiles] = OrderedDict()
        # one thread plans, another stages or cuts an earlier step
        self._lock = threading.RLock()

    def attach(self, kept: KeptValues) -> None:
        """Set where the lists are."""
        self._kept = kept

    @property
    def is_writable(self) -> bool:
        """Whether files may leave positions."""
        return self._kept is not None and self._kept.put is not None

    def of(self, position: FilePosition) -> FinishedFiles:
        """Return the files in the lists of a position. Raises ``FatalError`` (``file.list_gone``)."""
        names = tuple(name for name, _ in position.read.lists) if position.read else ()
        if not names:
            return NO_FILES
        with self._lock:
            view = self._views.get(names)
            if view is None:
                view = NO_FILES.with_rows(row for name in names for row in self._rows(name))
            return self._remembered(names, view)

    def _remembered(self, names: tuple[str, ...], view: FinishedFiles) -> FinishedFiles:
        with self._lock:
            self._views[names] = view
            self._views.move_to_end(names)
            while len(self._views) > _VIEWS:
                self._views.popitem(last=False)
        return view

    def _rows(self, name: str) -> list[TrackedFile]:
        value = None if self._kept is None else self._kept.get(name)
        if value is None:
            raise self._gone(name)
        rows: list[list[Any]] = msgspec.msgpack.decode(zlib.decompress(value))
        return [TrackedFile(*row) for row in rows]

    def _gone(self, name: str) -> FatalError:
        context = self._context
        return FatalError(
            f"a position refers to a list of files that were read, {name[:12]}…, which is not in the state store",
            code="file.list_gone",
            node=context.full_id,
            fix="put the state store back from a backup; or read all files again:"
            f" conduit-dagster positions rewind {context.pipeline} {context.connector} --to-start",
        )

    def back(self, position: FilePosition, numbers: Iterable[int]) -> list[TrackedFile]:
        """Return those of the files with these numbers that a position has in its lists only."""
        active, finished = {file.number for file in position.files}, self.of(position)
        return [row for number in numbers if number not in active and (row := finished.find(number)) is not None]

    def left(self, position: FilePosition, states: FileStates, changed: Collection[int], alive: Alive) -> FilePosition:
        """Return the position without the files that it says are finished, once they are stored durably in a list.

        ``changed``: numbers of the files that the step reads, which stay. ``alive`` is asked for the files to keep when
        all lists are merged.
        """
        finished, read = self.of(position), position.read or FinishedLists()
        leaving = [row for file in position.files if file.number not in changed for row in states.finished(file)]
        if len(leaving) < LEAVES_AT:
            leaving = []
        gone = {file.number for file in states.gone}
        # a row that is not true any more must not be found again: the file's next content may begin as that one did
        hidden = [void(number) for number in gone if number in finished.rows]
        hidden += [void(file.number) for file in states.untrue]
        read = read.moved([*leaving, *states.gone], ())
        if leaving or hidden:
            again = [row for file in states.listed if file.number not in changed for row in states.finished(file)]
            read = self._added(finished, read, [*leaving, *hidden, *again], alive)
        numbers = {row.number for row in leaving}
        files = tuple(file for file in position.files if file.number not in numbers)
        return FilePosition(position.seen, files, read)

    def _added(
        self, finished: FinishedFiles, read: FinishedLists, rows: Sequence[TrackedFile], alive: Alive
    ) -> FinishedLists:
        """Store a list of these rows durably, merged with lists before it that are not larger.

        A merge of all lists leaves out the files that are gone.
        """
        view, lists, merged = finished.with_rows(rows), list(read.lists), {row.number: row for row in rows}
        while lists and lists[-1][1] <= len(merged):
            name, _ = lists.pop()
            merged = {row.number: row for row in self._rows(name)} | merged
        if not lists:
            existing = set(alive(view.rows.values()))
            view = view.with_rows((), [number for number in view.rows if number not in existing])
            merged = dict(view.rows)
        if merged:
            lists.append((self._put(merged), len(merged)))
        self._remembered(tuple(name for name, _ in lists), view)
        return msgspec.structs.replace(read, lists=tuple(lists))

    def _put(self, rows: Mapping[int, TrackedFile]) -> str:
        assert self._kept is not None and self._kept.put is not None, "files leave only for the state store"
        ordered = [msgspec.structs.astuple(rows[number]) for number in sorted(rows)]
        return self._kept.put(zlib.compress(msgspec.msgpack.encode(ordered)))
