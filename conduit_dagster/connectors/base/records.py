"""Staging of whole records with their origins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from conduit_dagster.connectors.base.delivery import Delivery
from conduit_dagster.connectors.base.lines import StagedWriter, staged_lines
from conduit_dagster.connectors.base.writer import Refusal, Writer, WriterTask
from conduit_dagster.connectors.formats import Refused, nack_of
from conduit_dagster.record import Record, decode, envelope
from conduit_dagster.state.steps import Part

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, int, msgspec.Raw]).decode


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


def staged_records(delivery: Delivery) -> Iterator[StagedRecord]:
    """The records of a delivery that a :class:`RecordWriter` staged, in order; a line at a time in memory."""
    return map(_staged, staged_lines(delivery))


def _staged(line: bytes) -> StagedRecord:
    source, ordinal, record = _decode(line)
    return StagedRecord(source, ordinal, decode(record))
