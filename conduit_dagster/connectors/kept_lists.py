"""Fully read files: rows of lists outside the position, which names the lists by digest."""

from __future__ import annotations

import hashlib
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import msgspec

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext, KeptValues

LEAVES_AT = 64
"""Number of finished files that may stay in the position: with fewer, a list would be written for every few files."""
_VIEWS: Final = 4
"""Number of positions whose lists are cached: the newest one, and those of earlier steps in flight."""
_MODULUS = 1 << 256


class Placed(Protocol):
    """A file with the fields that determine how far it was read."""

    @property
    def placed(self) -> tuple[Any, ...]:
        """Fields that go into a place. Never change them: a stored sum can't be recomputed."""
        ...


class ListedRow(Protocol):
    """A file in a list."""

    @property
    def number(self) -> int:
        """Index of the file in the source, from 0."""
        ...

    @property
    def slot(self) -> Hashable:
        """Lookup key of the file; falsy for a row that hides an earlier one."""
        ...


class FinishedLists(msgspec.Struct, frozen=True):
    """Files that are no longer in the position itself."""

    lists: tuple[tuple[str, int], ...] = ()
    """Digest and number of rows of each list, oldest first. A later row of a file replaces an earlier one."""
    sum: str = ""
    """Sum, modulo 2^256, of the digests of all these files, including removed ones: it depends on how far each one was
    read, not on steps, lists, or dropped rows.
    """

    def moved(self, left: Iterable[Placed], back: Iterable[Placed]) -> FinishedLists:
        """Return the lists after ``left`` files left the position and ``back`` files came back to it."""
        total = int(self.sum or "0", 16) + _total(left) - _total(back)
        return msgspec.structs.replace(self, sum=f"{total % _MODULUS:064x}")

    def place(self, files: Iterable[Placed]) -> str:
        """Return the digest of these files and of all that left the position."""
        return self.moved(files, ()).sum

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        return {"lists": [[*one] for one in self.lists], "sum": self.sum}


class PositionWithLists(msgspec.Struct, frozen=True):
    """Position of a source of files: those that still matter, and the lists with the fully read ones."""

    seen: int = 0
    """Number of files seen so far."""
    read: FinishedLists | None = None
    """None: nothing has left the position."""
    files: tuple[Any, ...] = ()
    """Those that still matter, in reading order, each with its ``number``."""

    def with_files(self, files: Mapping[int, Any]) -> Self:
        """Return the position with these files in their new states, new ones at the end."""
        known = {file.number for file in self.files}
        fresh = [file for number, file in files.items() if number not in known]
        seen = max([self.seen, *(file.number + 1 for file in fresh)])
        kept = (files.get(file.number, file) for file in self.files)
        return msgspec.structs.replace(self, seen=seen, files=(*kept, *fresh))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        value: dict[str, Any] = {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}
        return value if self.read is None else {**value, "read": self.read.as_json()}

    def like(self, other: PositionWithLists) -> Self:
        """Return the position in the form of a later one, so that equal places of both forms are equal."""
        if self.read is not None or other.read is None:
            return self
        return msgspec.structs.replace(self, read=FinishedLists())


def _total(files: Iterable[Placed]) -> int:
    return sum(int.from_bytes(hashlib.sha256(msgspec.json.encode(file.placed)).digest()) for file in files)


Row = TypeVar("Row", bound=ListedRow)
View = TypeVar("View", bound="FinishedRows[Any]")


class FinishedRows(Generic[Row]):
    """The files in the lists of one position. Immutable."""

    def __init__(self, rows: Mapping[int, Row], slots: Mapping[Hashable, tuple[int, ...]]) -> None:
        """``rows``: each file when it was fully read, by number; ``slots``: numbers by slot."""
        self.rows, self._slots = rows, slots
        self._extended: weakref.ref[FinishedRows[Row]] | None = None

    def extends(self, other: FinishedRows[Any]) -> bool:
        """Return whether these are the ``other`` rows, possibly with later ones in slots that were free.

        May return False if several steps lie between them.
        """
        return self is other or (self._extended is not None and self._extended() is other)

    def at(self, slot: Hashable) -> list[Row]:
        """Return the files in a slot."""
        return [self.rows[number] for number in self._slots.get(slot, ())]

    def has(self, slot: Hashable) -> bool:
        """Return whether one of these files has, or had, this slot."""
        return slot in self._slots

    def with_rows(self, rows: Iterable[Row], dropped: Iterable[int] = ()) -> Self:
        """Return the rows with later ones added, and without the numbers ``dropped``."""
        every, slots, extends = dict(self.rows), dict(self._slots), True
        for row in rows:
            extends &= not _remove(row.number, every, slots)
            if row.slot:
                extends &= row.slot not in slots
                every[row.number] = row
                slots[row.slot] = (*slots.get(row.slot, ()), row.number)
        for number in dropped:
            extends &= not _remove(number, every, slots)
        later = type(self)(every, slots)
        later._extended = weakref.ref(self) if extends else None
        return later


def _remove(number: int, rows: dict[int, Row], slots: dict[Hashable, tuple[int, ...]]) -> bool:
    """Remove a row; return whether it existed."""
    row = rows.pop(number, None)
    if row is None:
        return False
    left = tuple(one for one in slots.pop(row.slot) if one != number)
    if left:
        slots[row.slot] = left
    return True


class KeptLists(Generic[Row, View]):
    """Lists of finished files in the state store. A list never changes; its digest is its name."""

    def __init__(self, context: ConnectorContext, row: type[Row], none: View) -> None:
        """``none``: the view of a position without lists."""
        self._context, self._row, self._none = context, row, none
        self._kept: KeptValues | None = None
        self._views: OrderedDict[tuple[str, ...], View] = OrderedDict()
        # one thread plans while another stages or cuts an earlier step
        self._lock = threading.RLock()

    def attach(self, kept: KeptValues) -> None:
        """Set the store of the lists."""
        self._kept = kept

    def of(self, position: PositionWithLists) -> View:
        """Return the files in the lists of a position. Raises ``FatalError`` (``file.list_gone``)."""
        return self.view(position.read)

    @property
    def is_writable(self) -> bool:
        """Whether files may leave positions."""
        return self._kept is not None and self._kept.put is not None

    def view(self, read: FinishedLists | None) -> View:
        """Return the files in the lists of a position. Raises ``FatalError`` (``file.list_gone``)."""
        names = tuple(name for name, _ in read.lists) if read else ()
        if not names:
            return self._none
        with self._lock:
            view = self._views.get(names)
            if view is None:
                view = self._none.with_rows(row for name in names for row in self._rows(name))
            return self._remembered(names, view)

    def _remembered(self, names: tuple[str, ...], view: View) -> View:
        with self._lock:
            self._views[names] = view
            self._views.move_to_end(names)
            while len(self._views) > _VIEWS:
                self._views.popitem(last=False)
        return view

    def _rows(self, name: str) -> list[Row]:
        value = None if self._kept is None else self._kept.get(name)
        if value is None:
            raise self._gone(name)
        rows: list[list[Any]] = msgspec.msgpack.decode(zlib.decompress(value))
        return [self._row(*row) for row in rows]

    def _gone(self, name: str) -> FatalError:
        context = self._context
        return FatalError(
            f"a position refers to a list of files that were read, {name[:12]}…, which is not in the state store",
            code="file.list_gone",
            node=context.full_id,
            fix="put the state store back from a backup; or read all files again:"
            f" conduit-dagster positions rewind {context.pipeline} {context.connector} --to-start",
        )

    def added(
        self, read: FinishedLists, rows: Sequence[Row], gone: Callable[[View], Iterable[int]] | None = None
    ) -> FinishedLists:
        """Store a list of these rows durably, merged with preceding lists that are not larger.

        A merge of all lists leaves out the rows that hide others, and the files whose numbers ``gone`` returns.
        """
        view, lists, merged = self.view(read).with_rows(rows), list(read.lists), {row.number: row for row in rows}
        while lists and lists[-1][1] <= len(merged):
            name, _ = lists.pop()
            merged = {row.number: row for row in self._rows(name)} | merged
        if not lists:
            if gone is not None and (numbers := list(gone(view))):
                view = view.with_rows((), numbers)
            merged = dict(view.rows)
        if merged:
            lists.append((self._put(merged), len(merged)))
        self._remembered(tuple(name for name, _ in lists), view)
        return msgspec.structs.replace(read, lists=tuple(lists))

    def _put(self, rows: Mapping[int, Row]) -> str:
        assert self._kept is not None and self._kept.put is not None, "files leave only for the state store"
        ordered = [msgspec.structs.astuple(rows[number]) for number in sorted(rows)]  # pyright: ignore[reportArgumentType]
        return self._kept.put(zlib.compress(msgspec.msgpack.encode(ordered)))
