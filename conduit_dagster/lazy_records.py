"""Blocks of records that are not objects yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, overload

from typing_extensions import override

from conduit_dagster.record import Data, Record, copy_data


class LazyRecords(Sequence[Record], ABC):
    """Records of one block that share operation and metadata; the first access to one makes all of them.

    Whoever changes the records first calls :meth:`all` and goes on with its list.
    """

    def __init__(self, like: Record) -> None:
        """``like``: a record with their operation and metadata."""
        self.like = like
        self._records: list[Record] | None = None

    @abstractmethod
    def _made(self) -> list[Record]:
        """Make the records."""

    def all(self) -> list[Record]:
        """Return the records, the same objects each time."""
        if self._records is None:
            self._records = self._made()
        return self._records

    def __iter__(self) -> Iterator[Record]:
        return iter(self.all())

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.all()[index]


class Rows(LazyRecords):
    """Records that are still Arrow columns.

    A block may consist of them only if the plan accepts them (``ReadOptions.rows``).
    """

    def __init__(self, batch: Any, like: Record, made: Callable[[], list[Record]]) -> None:
        """``batch``: Arrow record batch of the ``after`` of creates; ``like``: their operation and metadata."""
        super().__init__(like)
        self.batch = batch
        self._make = made

    @override
    def _made(self) -> list[Record]:
        return self._make()

    def __len__(self) -> int:
        return self.batch.num_rows


@dataclass(frozen=True)
class PayloadIds:
    """Positions and keys of the records of :class:`Payloads`, in their order."""

    positions: Sequence[Any]
    keys: Sequence[Data]


class Payloads(LazyRecords):
    """Records that are still a list of payloads, without ``before``.

    A block may consist of them only if the plan accepts them (``ReadOptions.payloads``).
    """

    def __init__(self, payloads: list[Any], like: Record, ids: PayloadIds | None = None) -> None:
        """``payloads``: the ``after`` of each record; ``ids``: None where ``read`` left positions and keys out."""
        super().__init__(like)
        self.payloads, self.ids = payloads, ids

    def __len__(self) -> int:
        return len(self.payloads)

    @override
    def _made(self) -> list[Record]:
        metadata, operation = repeat(self.like.metadata), repeat(self.like.operation)
        positions, keys = (repeat(0), repeat(None)) if self.ids is None else (self.ids.positions, self.ids.keys)
        return list(map(Record, positions, metadata, self.payloads, keys, repeat(None), operation))

    def at(self, place: int, payload: Any) -> Record:
        """Return one record as an object of its own, with another payload."""
        position, key = (0, None) if self.ids is None else (self.ids.positions[place], self.ids.keys[place])
        return Record(position, self.like.metadata, payload, key, None, self.like.operation)

    def changed(self, payloads: list[Any], gone: Sequence[int]) -> Payloads:
        """Return the same records with other payloads, without those at the places ``gone`` (ascending)."""
        ids = self.ids
        if gone and ids is not None:
            ids = PayloadIds(without(ids.positions, gone), without(ids.keys, gone))
        return Payloads(payloads, self.like, ids)

    def copied(self) -> Payloads:
        """Return copies that share no document with these records."""
        ids = self.ids
        if ids is not None:
            ids = PayloadIds(ids.positions, list(map(copy_data, ids.keys)))
        return Payloads(list(map(copy_data, self.payloads)), self.like, ids)


def as_list(records: list[Record]) -> list[Record]:
    """Return the records as a list, which whoever changes them needs."""
    return records.all() if isinstance(records, LazyRecords) else records


def payloads_of(records: Sequence[Record]) -> list[Any]:
    """Return the ``after`` of each record."""
    return records.payloads if isinstance(records, Payloads) else [record.after for record in records]


def operations_of(records: Sequence[Record]) -> set[str]:
    """Return the operations that occur."""
    if isinstance(records, LazyRecords):
        return {records.like.operation}
    return {record.operation for record in records}


def keys_of(records: Sequence[Record]) -> Sequence[Data]:
    """Return the key of each record."""
    if isinstance(records, Payloads):
        return [None] * len(records) if records.ids is None else records.ids.keys
    return [record.key for record in records]


def positions_of(records: Sequence[Record]) -> list[Any]:
    """Return the position of each record. Requires that they were read with positions."""
    if isinstance(records, Payloads) and records.ids is not None:
        return list(records.ids.positions)
    return [record.position for record in records]


_FEW: Final = 8
"""Number of gone values up to which deleting them from a copy is faster than joining what lies between."""


def without(values: Sequence[Any], gone: Sequence[int]) -> list[Any]:
    """Return the values but for those at the places ``gone`` (ascending)."""
    if len(gone) <= _FEW:
        on = list(values)
        for place in reversed(gone):
            del on[place]
        return on
    on = list[Any]()
    begin = 0
    for place in gone:
        on.extend(values[begin:place])
        begin = place + 1
    on.extend(values[begin:])
    return on
