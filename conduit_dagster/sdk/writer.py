"""Interface of writers: how a task stages its share of a delivery."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from conduit_dagster import storage
from conduit_dagster.idempotency_keys import IdempotencyKeys
from conduit_dagster.record import Nack, Record
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
        """Write a block, in order. Refused records are nacked, the others are written."""

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
