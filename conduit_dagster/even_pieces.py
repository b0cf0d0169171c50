"""Columns of values in pieces of one length, whatever blocks they come in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class EvenPieces:
    """Rows, column by column, that wait until there are enough of them for a piece.

    Invariant: the same rows give the same pieces, however they are divided into blocks. A step that is staged again
    from the log comes in other blocks than the source gave.
    """

    def __init__(self, columns: int, length: int) -> None:
        """``length``: rows of each piece but the last."""
        self._columns: list[list[Any]] = [[] for _ in range(columns)]
        self._length = length

    def add(self, columns: Iterable[Sequence[Any]]) -> Iterator[list[list[Any]]]:
        """Add the rows of a block; yield the pieces that are full."""
        for mine, new in zip(self._columns, columns, strict=True):
            mine += new
        while len(self._columns[0]) >= self._length:
            yield self._taken(self._length)

    def rest(self) -> Iterator[list[list[Any]]]:
        """Yield the rows that still wait, if there are any."""
        if self._columns[0]:
            yield self._taken(self._length)

    def _taken(self, length: int) -> list[list[Any]]:
        piece = [column[:length] for column in self._columns]
        for column in self._columns:
            del column[:length]
        return piece
