"""What a source gives: positions, ranges cut into splits, and blocks of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.record import Nack, Record

Position = Any
"""A JSON value: the boundary *after* a record, so that a source resumes exactly there (DELIVERY.md, Units)."""


class Limit(NamedTuple):
    """How much one step may read from one source."""

    records: int
    bytes: int


class Split(msgspec.Struct):
    """A part of a source's range that one task reads."""

    start: Position
    ordinal: int
    """How many records of the step's range of this source lie before it."""
    records: int | None = None
    """How many records it holds, where that is known."""
    bytes: int = 0
    """Its weight, for spreading splits over tasks."""
    detail: dict[str, Any] = {}
    """Whatever else ``read`` needs; a JSON object."""


class Plain(NamedTuple):
    """A block of records of which there is nothing else to tell."""

    payloads: Any
    """An Arrow column of bytes: ``after`` of each record."""
    positions: Any
    """Text, the same as ``Block.complete`` gives."""
    keys: Any
    """Bytes, likewise."""


class Replayed(NamedTuple):
    """What a block of dead letters that are sent again has in common."""

    node: str
    """The node that nacked them."""
    missed: Sequence[str]
    """The destinations that have no copy of them; none: all of them."""
    keys: Sequence[tuple[int, int]]
    """Each one's step and number in the index."""
    failed: Sequence[bytes]
    """Each one as it was when it was nacked, as the archive keeps it."""
    originals: Sequence[bytes]
    """Each one as its source gave it, likewise; empty where that is not kept."""
    at_node: bool
    """They go on at that node, as they were there; else they begin anew."""


class Block(NamedTuple):
    """A few thousand records in source order, with what the engine may ask about the i-th of them."""

    records: list[Record]
    boundary: Callable[[int], Position]
    """The position right after record i."""
    complete: Callable[[int, Record], None] | None = None
    """Fills in the key and position of record i where ``read`` left them out (``ReadOptions.keys``)."""
    nacks: Mapping[int, tuple[str, Nack]] = {}
    """Records that were nacked before they were logged: by which node, and why."""
    plain: Callable[[], Plain] | None = None
    """For a log of records, at a fraction of the cost of looking at each: only where all records are creates that
    share one metadata, with raw payloads and nothing before."""
    again: Callable[[Sequence[int]], list[Record]] | None = None
    """The records at these places, in order, once more, as they were before anything changed them: whole, with key and
    position. For dead letters, at a fraction of the cost of reading the split again. Only where ``sets_metadata``."""
    replayed: Replayed | None = None
    """The engine's own: of records that were nacked before."""

    @staticmethod
    def of(records: list[Record]) -> Block:
        """A block whose boundaries are its records' own positions."""
        positions = [record.position for record in records]
        return Block(records, positions.__getitem__)


class Keys(IntEnum):
    """Which keys a plan looks at."""

    NONE = 0
    """No key, and no position."""
    OBJECTS = 1
    """Keys that are documents, or the JSON of one; no other key, and no position."""
    POSITIONS = 2
    """Those, and every position."""
    ALL = 3
    """Every key and position."""


class ReadOptions(NamedTuple):
    """What the plan lets a source leave out."""

    keys: Keys = Keys.ALL
    """Other keys and positions may be left out, with ``Block.complete`` to fill them in; they need not be."""
    block_records: int = 3_000
    block_bytes: int = 65_536
    rows: bool = False
    """Nothing asks for a document: a block may be :class:`Rows`, of as many records as columns are fast with."""
