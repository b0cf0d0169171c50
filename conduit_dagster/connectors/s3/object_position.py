"""Position of the ``s3`` source: which objects were read, and as what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from conduit_dagster.connectors import kept_lists
from conduit_dagster.connectors.kept_lists import FinishedLists, FinishedRows, KeptLists, PositionWithLists
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.record import Operation
from conduit_dagster.sdk import ConnectorContext


class ObjectState(msgspec.Struct, frozen=True):
    """An object as it was read last, or that it was deleted."""

    key: str
    etag: str
    """Empty for a deleted object."""
    modified: int
    number: int
    """Index of the object in the source, from 0. One that comes back after it was deleted is another."""
    size: int
    operation: Operation

    @property
    def mark(self) -> tuple[str, int]:
        """What tells a version of the object from any other."""
        return self.etag, self.modified

    @property
    def placed(self) -> tuple[Any, ...]:
        """Fields that go into a place. Never change them: a stored sum can't be recomputed."""
        return self.key, self.etag, self.modified, self.number


class ObjectPosition(PositionWithLists, frozen=True):
    """Position of a source: the last objects that were read or deleted, in that order, and lists with the others."""

    files: tuple[ObjectState, ...] = ()
    copied: bool = False
    """Whether all objects were read that were there at first."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        return {**super().as_json(), "copied": self.copied}


class ListedObject(msgspec.Struct, frozen=True):
    """An object in a list."""

    key: str
    etag: str
    modified: int
    number: int

    @property
    def slot(self) -> str:
        """Its key; empty for a row that hides that of an object that was deleted."""
        return self.key

    @property
    def mark(self) -> tuple[str, int]:
        """As :attr:`ObjectState.mark`."""
        return self.etag, self.modified

    @property
    def placed(self) -> tuple[Any, ...]:
        """As :attr:`ObjectState.placed`."""
        return self.key, self.etag, self.modified, self.number


learn(ObjectPosition, ObjectState)
NO_OBJECTS: Final = FinishedRows[ListedObject]({}, {})


def parse_position(value: Any) -> ObjectPosition:
    """Return the position from its stored JSON value."""
    return msgspec.convert(value, ObjectPosition)


class ObjectLists(KeptLists[ListedObject, FinishedRows[ListedObject]]):
    """Lists of the objects that left positions."""

    def __init__(self, context: ConnectorContext) -> None:
        super().__init__(context, ListedObject, NO_OBJECTS)

    def known(self, position: ObjectPosition) -> dict[str, ObjectState | ListedObject]:
        """Return the existing objects of a position by key."""
        known: dict[str, ObjectState | ListedObject] = {row.key: row for row in self.of(position).rows.values()}
        for state in position.files:
            if state.etag:
                known[state.key] = state
            else:
                known.pop(state.key, None)
        return known

    def left(self, position: ObjectPosition) -> ObjectPosition:
        """Return the position without its objects, after they are stored durably in a list, if they are many."""
        if not self.is_writable or len(position.files) < kept_lists.LEAVES_AT:
            return position
        rows = [_listed(state) for state in position.files]
        read = position.read or FinishedLists()
        return msgspec.structs.replace(position, files=(), read=self.added(read.moved(position.files, ()), rows))

    def moved(self, position: ObjectPosition, changes: Sequence[ObjectState]) -> ObjectPosition:
        """Return the position after these changes."""
        if position.read is not None:
            rows, here = self.of(position).rows, {state.number for state in position.files}
            back = [rows[one.number] for one in changes if one.number in rows and one.number not in here]
            position = msgspec.structs.replace(position, read=position.read.moved((), back))
        changed = {one.number for one in changes}
        kept = (state for state in position.files if state.number not in changed)
        seen = max([position.seen, *(number + 1 for number in changed)])
        return msgspec.structs.replace(position, seen=seen, files=(*kept, *changes))

    def changes(self, start: ObjectPosition, end: ObjectPosition) -> list[ObjectState]:
        """Return what was read between two positions, in order.

        If they lie many steps apart, only the last change of each object.
        """
        before, after = self.of(start).rows, self.of(end).rows
        here, there = ({state.number: state for state in one.files} for one in (start, end))

        def was(number: int) -> ObjectState | ListedObject | None:
            return here.get(number) or before.get(number)

        found = list[ObjectState]()
        if after is not before:
            for number in sorted(after.keys() - there.keys()):
                found += _changed(was(number), after[number], start)
            for number in sorted((before.keys() | here.keys()) - after.keys() - there.keys()):
                found += _deleted(was(number))
        return found + [one for one in end.files if (old := was(one.number)) is None or old.mark != one.mark]


def _changed(old: ObjectState | ListedObject | None, new: ListedObject, start: ObjectPosition) -> list[ObjectState]:
    if old is not None and old.mark == new.mark:
        return []
    operation: Operation = "update" if old is not None else "create" if start.copied else "snapshot"
    return [ObjectState(new.key, new.etag, new.modified, new.number, 0, operation)]


def _deleted(old: ObjectState | ListedObject | None) -> list[ObjectState]:
    if old is None or not old.etag:
        return []
    return [ObjectState(old.key, "", old.modified, old.number, 0, "delete")]


def _listed(state: ObjectState) -> ListedObject:
    return ListedObject(state.key if state.etag else "", state.etag, state.modified, state.number)
