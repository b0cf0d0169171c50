"""Staging of encoded lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from conduit_dagster.connectors.base.delivery import Delivery
from conduit_dagster.connectors.base.new_part import NewPart
from conduit_dagster.connectors.base.writer import Refusal, Writer, WriterTask
from conduit_dagster.connectors.formats import Refused
from conduit_dagster.record import Record
from conduit_dagster.state import storage
from conduit_dagster.state.steps import Part


class Encoder(Protocol):
    """Turns a block of records into bytes."""

    def encode_block(self, records: list[Record]) -> tuple[bytes, Refused]:
        """The bytes of the records that can be encoded, in order, and the others' nacks."""
        ...


class StagedWriter(Writer):
    """Encodes blocks with an encoder into one new file of the staging folder."""

    def __init__(self, task: WriterTask, encoder: Encoder) -> None:
        self._encoder = encoder
        self._part = NewPart(task, "jsonl")
        self._records = 0

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Encodes and appends; what cannot be encoded is refused."""
        data, refused = self._encoder.encode_block(records)
        if data:
            self._part.write(data)
        self._records += len(records) - len(refused)
        return [Refusal(place, nack) for place, nack in refused]

    def finish(self) -> Part | None:
        """As the file beneath."""
        return self._part.finish(self._records)

    def abort(self) -> None:
        """As the file beneath."""
        self._part.abort()


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
