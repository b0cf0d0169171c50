"""Staging of encoded lines: the writer that file-like and driver destinations share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec

from conduit_dagster.connectors.base import Delivery, Part, Refusal, Writer, WriterTask
from conduit_dagster.connectors.formats import Refused, nack_of
from conduit_dagster.record import Record, decode, envelope
from conduit_dagster.state import storage


class Encoder(Protocol):
    """Turns a block of records into bytes."""

    def encode_block(self, records: list[Record]) -> tuple[bytes, Refused]:
        """The bytes of the records that can be encoded, in order, and the others' nacks."""
        ...


class StagedWriter(Writer):
    """Encodes blocks with an encoder into one new file of the staging folder."""

    def __init__(self, task: WriterTask, encoder: Encoder, suffix: str = "jsonl") -> None:
        self._encoder = encoder
        self._task = task
        self._name = f"{task.index:05d}-{task.token}.{suffix}"
        self._file: storage.NewFile | None = None
        self._records = 0

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Encodes and appends; what cannot be encoded is refused."""
        data, refused = self._encoder.encode_block(records)
        if data:
            self._open().write(data)
        self._records += len(records) - len(refused)
        return [Refusal(place, nack) for place, nack in refused]

    def _open(self) -> storage.NewFile:
        if self._file is None:
            storage.make_folder(self._task.staging)
            self._file = storage.NewFile(storage.join(self._task.staging, self._name))
        return self._file

    def finish(self) -> Part | None:
        """Durable from here on, but for the folder's entry, which the driver syncs before it prepares."""
        if self._file is None:
            return None
        return Part(self._name, self._records, self._file.bytes, self._file.finish())

    def abort(self) -> None:
        """Leaves a file that no ledger names; it goes with the staging folder."""
        if self._file is not None:
            self._file.abort()


class StagedRecord(NamedTuple):
    """A record of a delivery, and where it came from."""

    source: str
    ordinal: int
    """Its source record's place in the step's range of its source, from 0."""
    record: Record


class RecordWriter(Writer):
    """Stages whole records with their origins: for destinations that take records, not bytes."""

    def __init__(self, task: WriterTask) -> None:
        self._lines = StagedWriter(task, _OriginLines(self))
        self.source, self.first = "", 0
        self.origins: Sequence[int] = ()

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:
        """Keeps them for the next block."""
        self.source, self.first, self.origins = source, first, origins

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Encodes and appends; what cannot be encoded is refused."""
        return self._lines.write(records)

    def finish(self) -> Part | None:
        """As the file beneath."""
        return self._lines.finish()

    def abort(self) -> None:
        """As the file beneath."""
        self._lines.abort()


class _OriginLines:
    """``[source, ordinal, record]`` as one line of JSON."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def encode_block(self, records: list[Record]) -> tuple[bytes, Refused]:
        """As a format does."""
        lines: list[bytes] = []
        refused: Refused = []
        source, first = self._writer.source, self._writer.first
        for place, (record, origin) in enumerate(zip(records, self._writer.origins, strict=True)):
            try:
                lines.append(_encode((source, first + origin, envelope(record))) + b"\n")
            except Exception as error:  # noqa: BLE001  # whatever a record holds is its own nack
                refused.append((place, nack_of(error)))
        return b"".join(lines), refused


def staged_lines(delivery: Delivery) -> Iterator[bytes]:
    """The staged lines of a delivery, in order; of a child just its own. For stagings of one line per record."""
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


def staged_records(delivery: Delivery) -> Iterator[StagedRecord]:
    """The records of a delivery that a :class:`RecordWriter` staged, in order; a line at a time in memory."""
    return map(decode_staged, staged_lines(delivery))


def decode_staged(line: bytes) -> StagedRecord:
    """The staged record of one line."""
    source, ordinal, record = _decode(line)
    return StagedRecord(source, ordinal, decode(record))


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, int, msgspec.Raw]).decode
