"""Sources, and what they give: positions, ranges cut into splits, and blocks of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import msgspec

from conduit_dagster.record import Mode, Nack, Record
from conduit_dagster.sdk.context import ConnectorContext, ConnectorSettings
from conduit_dagster.sdk.dataset import Dataset, dataset_at

Position = Any
"""A JSON value: the boundary *after* a record, so that a source resumes exactly there (DELIVERY.md, Units)."""


class Limit(NamedTuple):
    """Limit on how much one step reads from one source."""

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


class PlainBlock(NamedTuple):
    """A block of records of which there is nothing else to tell."""

    payloads: Any
    """An Arrow column of bytes: ``after`` of each record."""
    positions: Any
    """Text, the same as ``Block.complete`` gives; or whole numbers, which stand for their decimal text."""
    keys: Any
    """Bytes, likewise; or whole numbers."""


class Replayed(NamedTuple):
    """Facts shared by a block of dead letters that are sent again."""

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
    plain: Callable[[], PlainBlock] | None = None
    """For a log of records, at a fraction of the cost of looking at each: only where all records are creates that
    share one metadata, with raw payloads and nothing before."""
    again: Callable[[Sequence[int]], list[Record]] | None = None
    """The records at these places, in order, once more, as they were before anything changed them: whole, with key and
    position. For dead letters, at a fraction of the cost of reading the split again. Only where ``sets_metadata``."""
    positions: Callable[[], list[Position]] | None = None
    """The position of each record where ``read`` left them out, for less than ``complete`` takes for each."""
    replayed: Replayed | None = None
    """The engine's own: of records that were nacked before."""

    @staticmethod
    def of(records: list[Record]) -> Block:
        """Return a block whose boundaries are its records' own positions."""
        positions = [record.position for record in records]
        return Block(records, positions.__getitem__)


class Keys(IntEnum):
    """Record keys that a plan needs."""

    NONE = 0
    """No key, and no position."""
    OBJECTS = 1
    """Keys that are documents, or the JSON of one; no other key, and no position."""
    POSITIONS = 2
    """Those, and every position."""
    ALL = 3
    """Every key and position."""


class ReadOptions(NamedTuple):
    """Options of a read: what the plan lets a source leave out."""

    keys: Keys = Keys.ALL
    """Other keys and positions may be left out, with ``Block.complete`` to fill them in; they need not be."""
    block_records: int = 3_000
    block_bytes: int = 65_536
    rows: bool = False
    """Nothing asks for a document: a block may be :class:`Rows`, of as many records as columns are fast with."""


class ResumeState(NamedTuple):
    """What the pipeline knows of a source when a run begins (reference 4)."""

    position: Position
    """The position from which it will be read on."""
    last: Record | None
    """The last record before that position, as it was logged; None without a log of records, or with an empty one."""
    collections: Mapping[str, Mode]
    """The mode of each collection: what :meth:`Source.collection_modes` tells, else that of its last record."""


class KeptValues(NamedTuple):
    """Access to immutable values in the state store that positions refer to by digest.

    For what would otherwise be stored again with every position. A value is kept as long as a stored position has its
    digest in it, as text.
    """

    get: Callable[[str], bytes | None]
    """Returns a value; None if it is gone or damaged."""
    put: Callable[[bytes], str] | None = None
    """Stores a value durably, before any position refers to it, and returns its digest (SHA-256, hex). None for a
    command that only looks: its positions are never stored."""


class Source(ABC):
    """A source of records.

    A range ``(start, end]`` that was once given must be readable again with the same records in the same order, else
    ``replayable`` is False and the commit log has to keep them.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[ConnectorSettings]] = ConnectorSettings
    replayable: ClassVar[bool] = True
    sets_metadata: ClassVar[bool] = False
    """True where ``read`` itself sets ``opencdc.readAt`` and ``conduit.source.connector.id``; else the engine does."""
    gives_rows: ClassVar[bool] = False
    """True where ``read`` gives :class:`Rows` when it is asked for them."""
    gives_json: ClassVar[bool] = False
    """True only where no document holds NaN or an infinity; else the engine looks at each, and makes them text."""
    gives_plain: ClassVar[bool] = False
    """True where each block of a read that leaves out keys tells ``Block.plain``."""
    identity_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that say which data this is; where one changes, the source starts anew under a new generation."""

    def __init__(self, settings: ConnectorSettings, context: ConnectorContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def initial(self) -> Position:
        """Return the position before the first record."""

    @abstractmethod
    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the furthest position that one step may read to; ``start`` itself if there is nothing new.

        ``horizon`` is None while a pipeline runs on, else what :meth:`horizon` gave at the start of the run.
        """

    @abstractmethod
    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return the range cut into about ``n`` splits, in order."""

    @abstractmethod
    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """Yield the split's records, block by block. Runs in a task."""

    def attach_kept(self, kept: KeptValues) -> None:  # noqa: B027  # most positions are small
        """Take the values that positions refer to. Called on the driver before positions are given or asked for.

        Not called by tests, ``validate`` and dry runs: without it positions hold everything themselves. Tasks do not
        have it either.
        """

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return numbers that tell a reader how far a position is, such as ``{"files_read": 12}``; none by default."""
        return {}

    def collection_modes(self, position: Position) -> Mapping[str, Mode]:
        """Return where collections stand at a position, as far as the source knows more than its records say.

        ``copy``: something that is there is not read; ``complete``: all of it is, by now. What comes later may turn
        ``complete`` into ``copy`` again. None by default: the mode of a collection is then its last record's.
        """
        return {}

    def resume(self, state: ResumeState) -> None:  # noqa: B027  # most sources need their positions only
        """Prepare to go on where an earlier run ended: collections in ``sync``, say, need no copy any more.

        Called once per run on the driver, before :meth:`horizon` and the first :meth:`latest`, also when nothing was
        read yet. A position that is given later may still be an earlier one (a rewind, a step that is cut). Tasks
        do not see what it does: what ``read`` needs goes into the position or a split.
        """

    def horizon(self) -> Any:
        """Return how far there is data now; a run that drains its sources stops there. Must not be None."""
        return {}

    def check(self) -> None:  # noqa: B027  # most find out when they read
        """Raise if it can't be read at all. For ``doctor --deep``: runs don't call it."""

    def verify(self, start: Position, end: Position) -> None:  # noqa: B027  # most sources can't change behind our back
        """Raise ``FatalError`` if a range returned before is not what it was: gone, replaced or truncated."""

    def gives_up(self, start: Position, end: Position) -> bool:
        """Return whether a planned range that was never prepared can't be read any more as it was planned.

        It is dropped, and what the source gives next follows its start: of a source that can't be replayed it is lost.
        """
        return False

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """Return the source's position at a boundary that :meth:`read` yielded inside this range."""
        return boundary

    def relocate(self, split: Split) -> Split:
        """Return a split of an earlier plan, with its data's current location."""
        return split

    def ack(self, upto: Position, generation: int) -> None:  # noqa: B027  # most sources have nothing to tell
        """Everything up to here is handled end to end. Monotone: a lower one, or of another generation, is ignored.

        Called after the position is durable in our store; it may be lost in a crash and is repeated at start.
        """

    def close(self) -> None:  # noqa: B027  # most hold nothing open
        """Called once at the end of every run, on the driver, whatever came of it; nothing is acked after it.

        A later run may use the same object again. Not called where the process is killed, or left hanging.
        """

    def lag(self, position: Position) -> int | None:
        """Return how far ``position`` is behind the newest data, in the source's :attr:`lag_unit`; None if unknown."""
        return None

    lag_unit: ClassVar[str] = "bytes"

    def lag_seconds(self, position: Position) -> float | None:
        """Return for how long the oldest data behind ``position`` may have waited; 0 if none waits, None if unknown.

        Never less than it has waited.
        """
        return None

    def place(self, position: Position) -> Any:
        """Return the part of a position that says where it is, without observations: it goes into the delivery hash."""
        return position

    @property
    def unit(self) -> dict[str, Any]:
        """Which data this is: the plugin and its identity settings."""
        values = self.settings.model_dump(mode="json", by_alias=True)
        return {"plugin": self.name, **{key: values.get(key) for key in self.identity_settings}}

    @property
    def owned(self) -> str | None:
        """The one thing that no other source may read, such as a replication slot, without secrets; None if all may."""
        return None

    @property
    def dataset(self) -> Dataset | None:
        """What it reads, as lineage tools name it: by default the ``path`` of its unit; None if it has no such name."""
        path = self.unit.get("path")
        return dataset_at(path) if isinstance(path, str) else None
