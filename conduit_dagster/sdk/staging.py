"""Staging of deliveries: writers, which tasks use, and staged lines and records, which the driver reads back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.formats import Refused, nack_of
from conduit_dagster.record import Nack, Record, decode, envelope, structure_faults
from conduit_dagster.sdk.context import IdempotencyKeys
from conduit_dagster.state.steps import Part


class Refusal(NamedTuple):
    """A record that a writer refused: its place in the block, and the nack."""

    place: int
    nack: Nack


@dataclass(frozen=True)
class WriterTask:
    """Context of a writer: its staging folder and delivery hash."""

    staging: str
    """URL of the staging folder of this execution of the delivery."""
    index: int
    """Index of the task; the parts in index order are the delivery in order."""
    token: str
    """Random value, one per task attempt, so that files of a zombie task never collide with ours.

    Source: DELIVERY.md, Stage.
    """
    hash: str = ""
    """The delivery hash: the same for every attempt. For the writer's own side effects."""
    idempotency: IdempotencyKeys = field(default_factory=IdempotencyKeys)
    """Idempotency keys of single records: ``idempotency.key_of(record)``, asked for within ``write``."""


class Writer(ABC):
    """Writes a task's share of a delivery. Runs in a task."""

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:  # noqa: B027  # most don't ask
        """Receive the origins of the next block: record ``i`` is from record ``first + origins[i]`` of the range.

        Called before each ``write``. ``first`` and ``origins`` count the records of ``source`` in the step's range from
        0.
        """

    @abstractmethod
    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Write a block, in order. Refused records are nacked, the others are written.

        The same records must give the same bytes, however they are divided into blocks: a step that is staged again
        from the log comes in other blocks than the source gave.
        """

    @abstractmethod
    def finish(self) -> Part | None:
        """Make the part durable and return it; None if nothing was written."""

    @abstractmethod
    def abort(self) -> None:
        """Clean up after a failed task. Not called if the task is killed."""


class NewPart:
    """A part being written. Its file is created with the first byte; a task that stages nothing leaves no file."""

    def __init__(self, task: WriterTask, suffix: str) -> None:
        self._staging = task.staging
        self._name = f"{task.index:05d}-{task.token}.{suffix}"
        self._file: storage.NewFile | None = None

    def write(self, data: bytes) -> None:
        """Append bytes. Raises ``OSError``, after which nothing of the part counts."""
        if self._file is None:
            storage.make_folder(self._staging)
            self._file = storage.NewFile(storage.join(self._staging, self._name))
        self._file.write(data)

    def finish(self, records: int) -> Part | None:
        """Make the part durable and return it; None if nothing was written.

        The folder's entry is not yet durable: the driver syncs it before it prepares. ``records``: number of records in
        the part.
        """
        if self._file is None:
            return None
        return Part(self._name, records, self._file.bytes, self._file.finish())

    def abort(self) -> None:
        """Leave the file unfinished: no ledger names it, and it is removed with the staging folder."""
        if self._file is not None:
            self._file.abort()


Target = dict[str, Any]
"""Address of a delivery: JSON values chosen by the destination, stored before anything is published."""


@dataclass(frozen=True)
class Delivery:
    """A step's records for one consumer, or a child of it (a range of its records), identified by its hash."""

    hash: str
    step: int
    consumer: str
    staging: str
    """URL of the folder that holds its parts; empty if the folder is lost."""
    parts: tuple[Part, ...]
    target: Target
    skip: int = 0
    """Number of records of the delivery before the child's first one; part of the child's name."""
    take: int | None = None
    """Number of records from ``skip`` on that the child's range covers; None if the parts hold exactly this delivery.
    """
    without: tuple[int, ...] = ()
    """Ascending places in the delivery that the child leaves out of its range: see ``skips_records``."""

    @property
    def records(self) -> int:
        """Number of records to deliver."""
        return sum(part.records for part in self.parts) if self.take is None else self.take - len(self.without)

    @property
    def bytes(self) -> int:
        """Staged size in bytes."""
        return sum(part.bytes for part in self.parts)


class Encoder(Protocol):
    """Turns a block of records into bytes."""

    def encode_block(self, records: list[Record]) -> tuple[bytes, Refused]:
        """Return the bytes of the records that can be encoded, in order, and the nacks of the others."""
        ...


class StagedWriter(Writer):
    """Encodes blocks with an encoder into one new file of the staging folder."""

    def __init__(self, task: WriterTask, encoder: Encoder) -> None:
        self._encoder = encoder
        self._part = NewPart(task, "jsonl")
        self._records = 0

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Encode and append the records; those that cannot be encoded are refused."""
        data, refused = self._encoder.encode_block(records)
        if data:
            self._part.write(data)
        self._records += len(records) - len(refused)
        return [Refusal(place, nack) for place, nack in refused]

    def finish(self) -> Part | None:
        """Finish the file; return its part."""
        return self._part.finish(self._records)

    def abort(self) -> None:
        """Abort the file."""
        self._part.abort()


def staged_lines(delivery: Delivery) -> Iterator[bytes]:
    """Yield the staged lines of a delivery, or of a child, in order. Requires one staged line per record."""
    if not delivery.without:
        return _lines(delivery)
    left_out = frozenset(delivery.without)
    return (line for place, line in enumerate(_lines(delivery), delivery.skip) if place not in left_out)


def _lines(delivery: Delivery) -> Iterator[bytes]:
    skip, left = (0, None) if delivery.take is None else (delivery.skip, delivery.take)
    for part in delivery.parts:
        if skip >= part.records:
            skip -= part.records
            continue
        with storage.open_read(storage.join(delivery.staging, part.name)) as file:
            for line in islice(file, skip, None if left is None else skip + left):
                yield line
                left = None if left is None else left - 1
        skip = 0
        if left == 0:
            return


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, int, msgspec.Raw]).decode


class StagedRecord(NamedTuple):
    """A record of a delivery, with the source record it came from."""

    source: str
    ordinal: int
    """The source record's place in the step's range of its source, from 0."""
    record: Record


class RecordWriter(StagedWriter):
    """Writer that stages whole records with their origins, for destinations that take records, not bytes."""

    def __init__(self, task: WriterTask) -> None:
        super().__init__(task, _OriginLines(self))
        self.source, self.first = "", 0
        self.origins: Sequence[int] = ()

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:
        """Store the origins of the next block's records."""
        self.source, self.first, self.origins = source, first, origins


class _OriginLines:
    """``[source, ordinal, record]`` as one line of JSON."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def encode_block(self, records: list[Record]) -> tuple[bytes, Refused]:
        """Encode a block, as a format does."""
        lines: list[bytes] = []
        refused: Refused = []
        source, first = self._writer.source, self._writer.first
        # what could not be read back must not be prepared
        faults = structure_faults(records)
        for place, (record, origin) in enumerate(zip(records, self._writer.origins, strict=True)):
            if faults and place in faults:
                refused.append((place, Nack("record.invalid", faults[place])))
                continue
            try:
                lines.append(_encode((source, first + origin, envelope(record))) + b"\n")
            except Exception as error:  # noqa: BLE001  # whatever a record holds is its own nack
                refused.append((place, nack_of(error)))
        return b"".join(lines), refused


def staged_records(delivery: Delivery) -> Iterator[StagedRecord]:
    """Yield the records that a :class:`RecordWriter` staged for a delivery, in order. Holds one line in memory."""
    return map(_staged, staged_lines(delivery))


def _staged(line: bytes) -> StagedRecord:
    source, ordinal, record = _decode(line)
    return StagedRecord(source, ordinal, decode(record))


_OWNER = (
    "let the user of the driver delete what the workers write, or the disk fills up; what is left of staging goes when"
    " the pipeline starts again"
)
_told: set[str] = set()


def discard_folder(url: str) -> None:
    """Remove a folder that is no longer needed. One that stays is no error: a process warns once per parent folder."""
    try:
        storage.remove_folder(url)
    except OSError as error:
        _tell("folder", url, url.rpartition("/")[0], error)


def discard_file(url: str) -> None:
    """Remove a file that is no longer needed. One that stays is no error: a process warns once per folder of folders.

    Object stores may allow to write and refuse to remove.
    """
    try:
        storage.remove(url)
    except OSError as error:
        _tell("file", url, url.rsplit("/", 2)[0], error)


def _tell(kind: str, url: str, parent: str, error: OSError) -> None:
    if parent not in _told:
        import structlog  # a hundred modules, for what hardly ever happens

        _told.add(parent)
        structlog.get_logger("conduit.storage").warning(
            f"a {kind} that is no longer needed can't be removed", cause=str(error), fix=_OWNER, **{kind: url}
        )
