"""Original records from the source, for the few that were nacked after processors had changed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from conduit_dagster.record import Record
from conduit_dagster.sdk import Block


class Originals:
    """Reader that reads a range a second time, only on request and only as far as needed.

    Costs nothing without nacks, unlike a copy of every record.
    """

    def __init__(self, again: Callable[[], Iterator[Block]], first: int) -> None:
        """``again`` reads the range from its beginning, whose first record has the ordinal ``first``."""
        self._again, self._first = again, first
        self._records: Iterator[Record] | None = None
        self._next = first

    def of(self, ordinals: Sequence[int]) -> list[Record]:
        """Return the records with these ordinals, in order; a call can't go back before the previous one."""
        if self._records is None:
            self._records = chain.from_iterable(block.records for block in self._again())
        found: list[Record] = []
        for ordinal in ordinals:
            record = None
            while self._next <= ordinal:
                record = next(self._records)
                self._next += 1
            assert record is not None, "asked twice"
            found.append(record)
        return found
