"""Staging of encoded lines: the writer that file-like and driver destinations share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conduit_dagster.connectors.base import Delivery, Part, Refusal, Writer, WriterTask
from conduit_dagster.connectors.formats import Format, make_format
from conduit_dagster.record import Record, decode
from conduit_dagster.state import storage


class StagedWriter(Writer):
    """Encodes blocks with a format into one new file of the staging folder."""

    def __init__(self, task: WriterTask, encoder: Format, suffix: str = "jsonl") -> None:
        self._encoder = encoder
        self._task = task
        self._name = f"{task.index:05d}-{task.token}.{suffix}"
        self._file: storage.NewFile | None = None
        self._records = 0

    @classmethod
    def opencdc(cls, task: WriterTask) -> StagedWriter:
        """A writer of OpenCDC JSON lines, which :func:`staged_records` reads back."""
        return cls(task, make_format("opencdc/json", ""))

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


def staged_records(delivery: Delivery) -> Iterator[Record]:
    """The records of a delivery that was staged as OpenCDC lines, in order; a line at a time in memory."""
    for part in delivery.parts:
        with storage.open_read(storage.join(delivery.staging, part.name)) as file:
            for line in file:
                yield decode(line)
