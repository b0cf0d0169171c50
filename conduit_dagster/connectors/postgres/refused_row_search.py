"""Search for the rows of a delivery that the database refuses, which names only the first of each statement."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.sqlstates import RowError
from conduit_dagster.connectors.postgres.staged_rows import MOVES
from conduit_dagster.connectors.postgres.table_plan import CopyBatch, Slice, lines_of
from conduit_dagster.sdk import NACKED_TOGETHER

_WIDEST: Final = 1_000


class RowSearch:
    """Search within one transaction: windows of rows one after another, each after a savepoint.

    Accepted rows stay, so that each row is checked with those before it in place, as a unique index requires. A window
    is twice as wide as the distance to the last refused row, and grows while rows are accepted: about two writes per
    refused row. The search ends with as many rows as the engine nacks together.
    """

    def __init__(self, connection: Connection, write: Callable[[CopyBatch], None]) -> None:
        """``write`` writes a batch and raises ``RowError`` for its first refused row."""
        self._connection, self._write = connection, write
        self._width = _WIDEST
        self.found: list[RowError] = []
        """The errors of refused rows, in the order of the batches."""

    def run(self, batches: Iterable[CopyBatch]) -> None:
        """Search these batches. Raises any error of ``write`` other than ``RowError``; :attr:`found` is kept."""
        for batch in batches:
            self._batch(batch)
            if len(self.found) >= NACKED_TOGETHER:
                return

    def _batch(self, batch: CopyBatch) -> None:
        lines, waiting = _lines(batch), deque[_Line]()
        while len(self.found) < NACKED_TOGETHER:
            window = self._window(waiting, lines)
            if not window:
                return
            for _ in range(self._passed(batch, [line.slice for line in window])):
                waiting.popleft()

    def _window(self, waiting: deque[_Line], lines: Iterator[_Line]) -> list[_Line]:
        """Return the next rows, which stay in ``waiting``. Consecutive changes of keys stay together."""
        window: list[_Line] = []
        for line in chain(tuple(waiting), _kept(lines, waiting)):
            goes_on = line.moves and bool(window) and window[-1].moves
            # such rows may exchange their keys
            if len(window) >= self._width and not (goes_on and len(window) < self._width + _WIDEST):
                break
            window.append(line)
        return window

    def _passed(self, batch: CopyBatch, window: Sequence[Slice]) -> int:
        """Write a window up to its first refused row; return the number of rows done, including the refused one."""
        error = self._refused(batch, window)
        if error is None:
            self._width = min(_WIDEST, self._width * 2)
            return len(window)
        places = [one.place for one in window]
        # a merge may not check rows in order: without the rows after it, an earlier row may be the first refused
        while (number := places.index(error.place)) and (earlier := self._refused(batch, window[:number])):
            error = earlier
        self._width = min(_WIDEST, 2 * (number + 1))
        self.found.append(error)
        return number + 1

    def _refused(self, batch: CopyBatch, window: Sequence[Slice]) -> RowError | None:
        try:
            with self._connection.transaction():
                self._write(batch._replace(slices=_joined(window)))
        except RowError as error:
            return error
        return None


class _Line(NamedTuple):
    slice: Slice
    moves: bool
    """Whether the line gives a row a new key."""


def _kept(lines: Iterator[_Line], waiting: deque[_Line]) -> Iterator[_Line]:
    for line in lines:
        waiting.append(line)
        yield line


def _lines(batch: CopyBatch) -> Iterator[_Line]:
    """Yield each line of a batch as a slice of its own."""
    for one, line in lines_of(batch.slices):
        yield _Line(one, batch.group.moves and line[:1].decode() in MOVES)


def _joined(lines: Sequence[Slice]) -> list[Slice]:
    """Join consecutive lines into slices, which are read at once."""
    found: list[Slice] = []
    for line in lines:
        last = found[-1] if found else None
        if last and (last.url, last.offset + last.bytes, last.place + last.records) == (
            line.url,
            line.offset,
            line.place,
        ):
            found[-1] = last._replace(bytes=last.bytes + line.bytes, records=last.records + line.records)
        else:
            found.append(line)
    return found
