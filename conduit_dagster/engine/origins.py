"""Origins of staged records, stored beside the parts of a destination that does not stage whole records; namespaces.

They locate a refused record, or the next one of a delivery in pieces, by its place in the delivery, without reading the
source again or running any code: a prepared step needs only staging and the state store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeGuard

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.dead_letters.letter_layout import clean
from conduit_dagster.even_pieces import EvenPieces
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.lazy_records import positions_of
from conduit_dagster.record import Record, copy, mode_of
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import (
    Block,
    Destination,
    LazyRecords,
    NewPart,
    Part,
    RecordWriter,
    Refusal,
    StagedDestination,
    Writer,
    WriterTask,
)
from conduit_dagster.sdk.destination import RecordStaging
from conduit_dagster.state.steps import LastInNamespace, StagedDelivery

_encode = msgspec.json.Encoder().encode
_Line = tuple[str, int, list[int] | int, list[Any], list[str] | str]
_decode = msgspec.json.Decoder(_Line).decode


class RecordOrigin(NamedTuple):
    """Origin of one record of a delivery."""

    source: str
    ordinal: int
    """The source record's place in the step's range of its source, from 0."""
    position: Any
    """The record's own position."""
    namespace: str


def keeps_origins(destination: Destination) -> bool:
    """Return whether origins are stored beside its parts: it accepts children, and its parts don't name sources."""
    return (
        isinstance(destination, StagedDestination)
        and destination.divisible
        and not isinstance(destination, RecordStaging)
    )


class BlockPositions:
    """Positions of one block's records, computed once, and only on demand."""

    def __init__(self, block: Block, are_read: bool) -> None:
        """``are_read``: the source was asked for positions; otherwise a block with ``complete`` may lack them."""
        self._block, self._are_read = block, are_read or block.complete is None

    def of(self, records: Sequence[Record], origins: Sequence[int]) -> list[Any]:
        """Return the positions of ``records``; record ``i`` comes from record ``origins[i]`` of the block."""
        if self._are_read:
            return positions_of(records)
        every = self._every
        return every[origins.start : origins.stop] if _is_run(origins) else [every[origin] for origin in origins]

    @lazy_property
    def _every(self) -> list[Any]:
        if self._block.positions is not None:
            return self._block.positions()
        assert self._block.complete is not None
        found: list[Any] = []
        for place in range(len(self._block.records)):
            record = Record(0, {})
            self._block.complete(place, record)
            found.append(record.position)
        return found


def _is_run(origins: Sequence[int]) -> TypeGuard[range]:
    return isinstance(origins, range) and origins.step == 1


def _shifted(origins: Sequence[int], by: int) -> Sequence[int]:
    return range(by + origins.start, by + origins.stop) if _is_run(origins) else [by + origin for origin in origins]


_LINE = 1_000


class _OriginLines:
    """Origins as lines of JSON, each of at most ``_LINE`` records of one source."""

    def __init__(self, part: NewPart) -> None:
        self._part = part
        self._source = ""
        self._waiting = EvenPieces(3, _LINE)

    def add(self, source: str, ordinals: Sequence[int], positions: list[Any], namespaces: str | list[str]) -> None:
        """Add a block's records; ``ordinals`` are their places in the source's range."""
        if source != self._source:
            self.flush()
            self._source = source
        named = [namespaces] * len(ordinals) if isinstance(namespaces, str) else namespaces
        self._write(self._waiting.add((ordinals, positions, named)))

    def flush(self) -> None:
        """Write the last line of a source."""
        self._write(self._waiting.rest())

    def _write(self, pieces: Iterable[list[list[Any]]]) -> None:
        for ordinals, positions, namespaces in pieces:
            self._part.write(_line(self._source, ordinals, positions, namespaces) + b"\n")


def _line(source: str, ordinals: list[int], positions: list[Any], namespaces: list[str]) -> bytes:
    first, count = ordinals[0], len(ordinals)
    # consecutive records are encoded as the first one and their number
    is_run = ordinals == [*range(first, first + count)]
    rest = count if is_run else [ordinal - first for ordinal in ordinals]
    named = namespaces[0] if namespaces.count(namespaces[0]) == count else namespaces
    try:
        return _encode((source, first, rest, positions, named))
    except UnicodeEncodeError:
        names = clean(named) if isinstance(named, str) else list(map(clean, named))
        return _encode((source, first, rest, [clean(str(position)) for position in positions], names))


class TracedWriter(Writer):
    """Wraps a destination's own writer and stores the origins beside its part.

    ``as_records``: also stage the share as whole records, for single records that the destination refuses.
    """

    def __init__(self, writer: Writer, task: WriterTask, as_records: bool = False) -> None:
        self._writer, self._part = writer, NewPart(task, "origins")
        # a separate token: the writer may name its part in the same way
        self._records = RecordWriter(replace(task, token=f"{task.token}r")) if as_records else None
        self._lines, self._count = _OriginLines(self._part), 0
        self._source, self._first, self._origins = "", 0, tuple[int, ...]()
        self._positions = BlockPositions(Block([], lambda i: None), are_read=True)
        self.origins: Part | None = None
        """Set, like :attr:`records`, once :meth:`finish` has returned."""
        self.records: Part | None = None

    def block(self, positions: BlockPositions) -> None:
        """Set the positions of the block that the next records come from."""
        self._positions = positions

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:
        """Store the origins of the next block's records, and pass them on."""
        self._source, self._first, self._origins = source, first, origins
        self._writer.place(source, first, origins)

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Write with the destination's writer. Refused records get no origin: they have no place in the delivery."""
        kept = [copy(record) for record in records] if self._records else records
        refused = self._writer.write(records)
        origins = self._origins
        if refused:
            gone = {refusal.place for refusal in refused}
            origins = [origin for place, origin in enumerate(origins) if place not in gone]
            kept = [record for place, record in enumerate(kept) if place not in gone]
        if kept:
            self._trace(origins, kept)
        return refused

    def _trace(self, origins: Sequence[int], records: list[Record]) -> None:
        """Add the origins; record ``i`` comes from record ``first + origins[i]`` of the source."""
        positions = self._positions.of(records, origins)
        self._lines.add(self._source, _shifted(origins, self._first), positions, _namespaces_of(records))
        self._count += len(positions)
        if self._records is not None:
            self._records.place(self._source, self._first, origins)
            self._records.write(records)

    def finish(self) -> Part | None:
        """Finish the origins, and return the writer's own part."""
        part = self._writer.finish()
        self._lines.flush()
        self.origins = self._part.finish(self._count)
        self.records = None if self._records is None else self._records.finish()
        return part

    def abort(self) -> None:
        """Abort the writer and the origins: none of it counts."""
        for writer in (self._writer, self._part, self._records):
            if writer is not None:
                writer.abort()


def read_origins(staged: StagedDelivery) -> Iterator[RecordOrigin]:
    """Yield the origins of a delivery's records, in order, with one block in memory at a time.

    Raises ``FatalError`` (``state.version``) if another version staged them in another form.
    """
    for part in staged.origins:
        url = storage.join(staged.staging, part.name)
        with storage.open_read(url) as file:
            for line in file:
                source, first, rest, positions, named = _decoded(line, url)
                origins = range(rest) if isinstance(rest, int) else rest
                namespaces = [named] * len(origins) if isinstance(named, str) else named
                for origin, position, namespace in zip(origins, positions, namespaces, strict=True):
                    yield RecordOrigin(source, first + origin, position, namespace)


def _decoded(line: bytes, url: str) -> _Line:
    try:
        return _decode(line)
    except msgspec.ValidationError as error:
        raise FatalError(
            f"the open step was staged in a form that this version of conduit-dagster does not know: {error}",
            code="state.version",
            place=url,
            fix="install the version that staged it (with a backup of the state store if that was migrated), finish"
            " the step with run --once, then upgrade",
        ) from error


_metadata_of = attrgetter("metadata")


class NamespaceTracker:
    """Tracker of the last record of each namespace. Adjacent records that share their metadata cost one lookup."""

    def __init__(self, seen: dict[str, LastInNamespace]) -> None:
        self._seen = seen

    def see(self, records: list[Record], ordinal: int, origins: Sequence[int]) -> None:
        """Register a block as it left the source's processors; ``ordinal`` is the block's place in the range."""
        if not records:
            return
        if isinstance(records, LazyRecords):
            self._seen[records.like.collection] = LastInNamespace(ordinal + origins[-1], mode_of(records.like))
            return
        for place in _ends(list(map(_metadata_of, records))):
            record = records[place]
            self._seen[record.collection] = LastInNamespace(ordinal + origins[place], mode_of(record))


def _namespaces_of(records: Sequence[Record]) -> str | list[str]:
    """Return the namespace of each record, or one name if all are equal. Requires at least one record."""
    if isinstance(records, LazyRecords):
        return records.like.collection
    if _is_shared(list(map(_metadata_of, records))):
        return records[0].collection
    named = [record.collection for record in records]
    return named[0] if len(set(named)) == 1 else named


def _is_shared(metadata: list[dict[str, str]]) -> bool:
    return all(map(is_, metadata, repeat(metadata[0])))


def _ends(metadata: list[dict[str, str]]) -> list[int]:
    """Return the end of each run of the same object."""
    last = len(metadata) - 1
    if _is_shared(metadata):
        return [last]
    return [place for place, one in enumerate(metadata) if place == last or metadata[place + 1] is not one]
