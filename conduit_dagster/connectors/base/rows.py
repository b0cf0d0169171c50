"""Rows of columns on their way to somebody who takes columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from conduit_dagster.record import Record


class Rows(Sequence[Record]):
    """Records that are still Arrow columns. They become records when somebody asks for one, and then all at once.

    Only where the plan takes them (``ReadOptions.rows``) are they a block's records.
    """

    def __init__(self, batch: Any, like: Record, made: Callable[[], list[Record]]) -> None:
        """``batch``: a ``pyarrow.RecordBatch``, each row the ``after`` of a created record; ``like``: operation and
        metadata of all of them."""
        self.batch = batch
        self.like = like
        self._made = made
        self._records: list[Record] | None = None

    def all(self) -> list[Record]:
        """The records, the same ones each time."""
        if self._records is None:
            self._records = self._made()
        return self._records

    def __len__(self) -> int:
        return self.batch.num_rows

    def __iter__(self) -> Iterator[Record]:
        return iter(self.all())

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.all()[index]
