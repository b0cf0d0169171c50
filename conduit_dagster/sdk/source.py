"""Interface of sources: positions, ranges cut into splits, and blocks of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from conduit_dagster.record import Mode, Nack, Record
from conduit_dagster.sdk.context import ConnectorContext, ConnectorSettings, Dataset, dataset_at
from conduit_dagster.sdk.promises import withdraw

Position = Any
"""A JSON value: the boundary *after* a record. A source resumes exactly there (DELIVERY.md, Units)."""


class Limit(NamedTuple):
    """Limit on how much one step reads from one source."""

    records: int
    bytes: int


MISCOUNTED: Final = "split.miscounted"


class Split(msgspec.Struct):
    """A part of a source's range that one task reads."""

    start: Position
    """The boundary before its first record, as :attr:`Block.boundary` is the one after a record: a step ends there if
    the split gives nothing.
    """
    ordinal: int
    """Number of records of the step's range of this source before the split."""
    records: int | None = None
    """Number of records in the split, if known."""
    bytes: int = 0
    """Estimated size, used to balance splits over tasks."""
    detail: dict[str, Any] = {}
    """Anything else that ``read`` needs; a JSON object."""
    assumed: bool = False
    """Whether ``ordinal`` and ``records`` are only assumed. ``read`` must check the number of records, and raise a
    ``FatalError`` with the code :data:`MISCOUNTED` if it is another: the range is then read again as one split.
    """


class PlainBlock(NamedTuple):
    """Columns of a block whose records differ only in key, position and payload."""

    payloads: Any
    """Arrow binary column: ``after`` of each record."""
    positions: Any
    """Text, equal to the result of ``Block.complete``; or integers, which stand for their decimal text."""
    keys: Any
    """Bytes, equal to the result of ``Block.complete``; or integers, which stand for their decimal text."""


class Replayed(NamedTuple):
    """Facts shared by a block of dead letters that are replayed."""

    node: str
    """The node that nacked them."""
    missed: Sequence[str]
    """Destinations that have no copy of them; empty means all destinations."""
    keys: Sequence[tuple[int, int]]
    """Step and number of each one in the index."""
    failed: Sequence[bytes]
    """Each record in its state when it was nacked, from the archive."""
    originals: Sequence[bytes]
    """Each record as its source returned it, from the archive; empty where the archive does not have it."""
    at_node: bool
    """True to continue at ``node`` with the failed records; False to restart from the originals."""


class Block(NamedTuple):
    """A few thousand records in source order, with accessors for facts about record ``i``."""

    records: list[Record]
    boundary: Callable[[int], Position]
    """The position right after record i."""
    complete: Callable[[int, Record], None] | None = None
    """Fill in the key and position of record i where ``read`` left them out (``ReadOptions.keys``)."""
    nacks: Mapping[int, tuple[str, Nack]] = {}
    """Records that were nacked before they were logged: the node that nacked them, and the nack."""
    plain: Callable[[], PlainBlock] | None = None
    """Columns for a log of records, at a fraction of the cost of visiting each record. Only if all records are creates
    with the same metadata, a raw ``after`` and no ``before``.
    """
    again: Callable[[Sequence[int]], list[Record]] | None = None
    """Return the records at these places, in order, as they were before anything changed them: complete, with key and
    position. For dead letters, at a fraction of the cost of reading the split again. Requires ``sets_metadata``.
    """
    positions: Callable[[], list[Position]] | None = None
    """Return the position of each record where ``read`` left them out, cheaper than ``complete`` for each."""
    replayed: Replayed | None = None
    """Reserved for the engine: set if the records are replayed dead letters."""

    @staticmethod
    def of(records: list[Record]) -> Block:
        """Return a block whose boundaries are its records' own positions."""
        positions = [record.position for record in records]
        return Block(records, positions.__getitem__)


class Keys(IntEnum):
    """Record keys that a plan needs."""

    NONE = 0
    """Neither keys nor positions."""
    OBJECTS = 1
    """Keys that are documents or a document's JSON text; no other keys, no positions."""
    POSITIONS = 2
    """The keys of ``OBJECTS``, and every position."""
    ALL = 3
    """Every key and position."""


class ReadOptions(NamedTuple):
    """Options of a read: what the source may leave out."""

    keys: Keys = Keys.ALL
    """Keys and positions beyond these may be left out, with ``Block.complete`` to fill them in; leaving them out is
    optional.
    """
    block_records: int = 3_000
    block_bytes: int = 65_536
    payloads: bool = False
    """A block may be :class:`Payloads`."""
    rows: bool = False
    """Documents are not needed: a block may be :class:`Rows`, with as many records as columnar processing handles best.
    """


class ResumeState(NamedTuple):
    """State of a source when a run begins (reference 4)."""

    position: Position
    """The position from which it is read next."""
    last: Record | None
    """The last record before that position, as logged; None without a log of records, or if it is empty."""
    collections: Mapping[str, Mode]
    """The mode of each collection: from :meth:`Source.collection_modes`, otherwise that of its last record."""


class Leftover(NamedTuple):
    """Something that a source keeps on its server, and that would stay there once its pipeline is deleted."""

    name: str
    """What it is, as in a sentence: ``replication slot shop``. No secrets."""
    loses: str = ""
    """What is lost with it: ``changes that were not read``; empty if nothing is."""


class KeptValues(NamedTuple):
    """Access to immutable values in the state store that positions refer to by digest.

    For values that would otherwise be stored again with every position. A value is kept as long as a stored position
    contains its digest as text.
    """

    get: Callable[[str], bytes | None]
    """Return a value; None if it is missing or damaged."""
    put: Callable[[bytes], str] | None = None
    """Store a value durably, before any position refers to it, and return its digest (SHA-256, hex). None for a
    read-only command: its positions are never stored.
    """


class Source(ABC):
    """A source of records.

    A range ``(start, end]`` that was returned once must be readable again with the same records in the same order;
    otherwise set ``replayable`` to False, and the commit log keeps the records.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[ConnectorSettings]] = ConnectorSettings
    replayable: ClassVar[bool] = True
    sets_metadata: ClassVar[bool] = False
    """True if ``read`` itself sets ``opencdc.readAt`` and ``conduit.source.connector.id``; otherwise the engine does.
    Blocks of :class:`LazyRecords` require it.
    """
    gives_rows: ClassVar[bool] = False
    """True if ``read`` yields :class:`Rows` when the options ask for them."""
    gives_json: ClassVar[bool] = False
    """True only if every record can be stored as JSON as it is, without NaN or infinities, and the source keeps none of
    them; otherwise the engine checks every value, turns these into text, nacks records that no step can hold, and takes
    copies: processors change documents in place.
    """
    gives_plain: ClassVar[bool] = False
    """True if every block of a read without keys provides ``Block.plain``."""
    identity_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that identify the data; if one changes, the source starts over under a new generation."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        withdraw(cls, Source, ("sets_metadata", "gives_rows", "gives_json", "gives_plain"), ("read",))

    def __init__(self, settings: ConnectorSettings, context: ConnectorContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def initial(self) -> Position:
        """Return the position before the first record."""

    @abstractmethod
    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the furthest position that one step may read to; ``start`` itself if there is nothing new.

        ``horizon`` is None while a pipeline runs continuously, otherwise the value of :meth:`horizon` at the start of
        the run.
        """

    @abstractmethod
    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return the range cut into about ``n`` splits, in order; one split if ``n`` is 1 and it can't count before.

        What no split covers has no records, as far as the engine can tell: the position moves over it.
        """

    @abstractmethod
    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """Yield the split's records, block by block. Runs in a task."""

    def attach_kept(self, kept: KeptValues) -> None:  # noqa: B027  # most positions are small
        """Receive the store for values that positions refer to.

        Called on the driver before any position is passed in or returned. Not called by tests, ``validate`` and dry
        runs: positions must then be self-contained. Not called in tasks either.
        """

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return progress figures of a position for display, such as ``{"files_read": 12}``; none by default."""
        return {}

    def collection_modes(self, position: Position) -> Mapping[str, Mode]:
        """Return the modes of collections at a position, as far as the source knows more than its records show.

        ``copy``: some existing data is still unread; ``complete``: all existing data has been read. New data may turn
        ``complete`` back into ``copy``. Empty by default: the mode of a collection is then its last record's.
        """
        return {}

    def resume(self, state: ResumeState) -> None:  # noqa: B027  # most sources need their positions only
        """Prepare to resume after an earlier run: for example, skip the copy of collections that are in ``sync``.

        Called once per run on the driver, before :meth:`horizon` and the first :meth:`latest`, even if nothing was read
        yet. A later call may still pass an earlier position (after a rewind, or if a step is cut). Tasks don't see its
        effects: data that ``read`` needs goes into the position or a split.
        """

    def horizon(self) -> Any:
        """Return the current end of the data; a run that drains its sources stops there. Must not be None."""
        return {}

    def check(self) -> None:  # noqa: B027  # most find out when they read
        """Raise if the source can't be read at all. Called by ``doctor --deep`` only, never by a run."""

    def verify(self, start: Position, end: Position) -> None:  # noqa: B027  # most sources can't change behind our back
        """Raise ``FatalError`` if the data of a range returned earlier is missing, replaced or truncated."""

    def gives_up(self, start: Position, end: Position) -> bool:
        """Return True if a planned range that was never prepared can no longer be read as planned.

        The plan is dropped, and the next range begins at its start. If the source can't be replayed, its records are
        lost.
        """
        return False

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """Return the source's position for a boundary that :meth:`read` yielded within this range."""
        return boundary

    def relocate(self, split: Split) -> Split:
        """Return a split of an earlier plan, updated with the current location of its data."""
        return split

    def ack(self, upto: Position, generation: int) -> None:  # noqa: B027  # most sources have nothing to tell
        """Acknowledge that every record up to ``upto`` is handled end to end.

        Monotonic: ignore a lower position, or one of another generation. Called after the position is durable in the
        state store. A crash may lose the call; it is repeated when the next run starts.
        """

    def close(self) -> None:  # noqa: B027  # most hold nothing open
        """Release resources. Called once on the driver at the end of every run, however it ended; no ack follows.

        A later run may use the same object again. Not called if the process is killed or left hanging.
        """

    def leftovers(self, position: Position) -> Sequence[Leftover]:
        """Return what ``pipelines delete`` would remove from the source's server. Changes nothing there.

        Only things that serve this pipeline alone: whatever others made or read is not listed, and nothing if the
        source never got to use it before ``position``, where it stands. None by default.
        """
        return ()

    def remove_leftovers(self, position: Position) -> None:  # noqa: B027  # most leave nothing
        """Remove what :meth:`leftovers` returns. Called with the pipeline's lease held; may be repeated."""

    @classmethod
    def left_by(cls, unit: Mapping[str, Any], position: Position) -> str:
        """Return, in words, what a source with this :attr:`unit` may have left on its server; empty for nothing.

        For a pipeline whose file is gone or names other data by now, or whose server does not answer: an operator then
        removes it by hand.
        """
        del unit, position
        return ""

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
        """Return the location part of a position, without observations: it goes into the delivery hash."""
        return position

    @property
    def unit(self) -> dict[str, Any]:
        """Identity of the data: the plugin and its identity settings."""
        values = self.settings.model_dump(mode="json", by_alias=True)
        return {"plugin": self.name, **{key: values.get(key) for key in self.identity_settings}}

    @property
    def owned(self) -> str | None:
        """Name of a resource that only one source may read, such as a replication slot; no secrets. None if any may."""
        return None

    @property
    def dataset(self) -> Dataset | None:
        """The data set it reads, for lineage tools; by default from the ``path`` of its unit. None if unnamed."""
        path = self.unit.get("path")
        return dataset_at(path) if isinstance(path, str) else None
