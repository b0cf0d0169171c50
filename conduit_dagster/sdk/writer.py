"""A task's share of a delivery on its way into the staging folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

from conduit_dagster import storage
from conduit_dagster.idempotency_keys import IdempotencyKeys
from conduit_dagster.record import Nack, Record
from conduit_dagster.state.steps import Part


class Refusal(NamedTuple):
    """A record that a writer could not take: its place in the block, and why."""

    place: int
    nack: Nack


@dataclass(frozen=True)
class WriterTask:
    """Task of a writer: where it stages, and under which hash."""

    staging: str
    """URL of the folder for this execution of this delivery."""
    index: int
    """The task's place; parts in order of their index are the delivery in order."""
    token: str
    """Random, one per task attempt: a zombie's files never meet ours (DELIVERY.md, Stage)."""
    hash: str = ""
    """The delivery hash: the same for every attempt. For side effects of a writer's own."""
    idempotency: IdempotencyKeys = field(default_factory=IdempotencyKeys)
    """Names of single records: ``idempotency.key_of(record)``."""


class Writer(ABC):
    """Writer of a task's share of a delivery. Runs in a task."""

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:  # noqa: B027  # most don't ask
        """Called before each ``write``: the i-th record comes from record ``first + origins[i]`` of the step's range.

        ``first`` and ``origins`` count the records of ``source`` from 0.
        """

    @abstractmethod
    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Write a block, in order. Refused records are nacked, the others are written."""

    @abstractmethod
    def finish(self) -> Part | None:
        """Make the part durable and return it; None if nothing was written."""

    @abstractmethod
    def abort(self) -> None:
        """Called when the task fails, and not at all when it is killed."""


class NewPart:
    """A part being written. Its file is made with the first byte; a task that stages nothing leaves none."""

    def __init__(self, task: WriterTask, suffix: str) -> None:
        self._staging = task.staging
        self._name = f"{task.index:05d}-{task.token}.{suffix}"
        self._file: storage.NewFile | None = None

    def write(self, data: bytes) -> None:
        """Append bytes. Raises ``OSError``; then nothing of the part counts."""
        if self._file is None:
            storage.make_folder(self._staging)
            self._file = storage.NewFile(storage.join(self._staging, self._name))
        self._file.write(data)

    def finish(self, records: int) -> Part | None:
        """Durable from here on, but for the folder's entry, which the driver syncs before it prepares.

        None where nothing was written. ``records`` is how many records the part holds.
        """
        if self._file is None:
            return None
        return Part(self._name, records, self._file.bytes, self._file.finish())

    def abort(self) -> None:
        """Leave the file unfinished: no ledger names it, and it is removed with the staging folder."""
        if self._file is not None:
            self._file.abort()


class Rows(Sequence[Record]):
    """Records that are still Arrow columns. They become records when the first one is used, and then all at once.

    Only where the plan takes them (``ReadOptions.rows``) are they a block's records.
    """

    def __init__(self, batch: Any, like: Record, made: Callable[[], list[Record]]) -> None:
        """``batch``: a ``pyarrow.RecordBatch``, each row the ``after`` of a created record; ``like``: operation and
        metadata of all of them."""
        self.batch = batch
        self.like = like
        self._made = made
        self._records: list[Record] | None = None

    def all(self) -> list[Record]:
        """Return the records, the same objects each time."""
        if self._records is None:
            self._records = self._made()
        return self._records

    def __len__(self) -> int:
        return self.batch.num_rows

    def __iter__(self) -> Iterator[Record]:
        return iter(self.all())

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.all()[index]
