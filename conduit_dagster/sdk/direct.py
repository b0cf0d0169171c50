"""Destinations that a second Spark job sends to, record by record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from conduit_dagster.idempotency_keys import IdempotencyKeys
from conduit_dagster.record import Nack, Record
from conduit_dagster.sdk.destination import RecordStaging


class Receipt(NamedTuple):
    """Outcome of a record that was sent."""

    place: int
    """As it was numbered in ``send``."""
    nack: Nack | None = None
    upto: bool = False
    """An ack that means this record and every one before it."""


@dataclass(frozen=True)
class SenderTask:
    """Task of a sender, known before its first record."""

    hash: str
    """The delivery hash: the same for every attempt."""
    consumer: str
    step: int
    idempotency: IdempotencyKeys = field(default_factory=IdempotencyKeys)
    """Names of single records: ``idempotency.key_of(record)``."""


class Sender(ABC):
    """Sender of staged records. Runs in a task; one instance sends one delivery, or the rest of one."""

    @abstractmethod
    def send(self, records: list[Record], first: int) -> Iterable[Receipt] | None:
        """Send records in order; the i-th is numbered ``first + i``. Returning None acks all of them.

        Receipts may come in any order, and later, from :meth:`finish`: what has none is not acked. Raising
        ``OSError`` or a ``ConduitError`` is an outage; anything else is a bulk error that names no record.
        """

    def finish(self) -> Iterable[Receipt]:
        """Wait for outstanding acks. Called after the last record, and once in every flush interval before."""
        return ()

    def close(self) -> None:  # noqa: B027  # most hold nothing open
        """Called at the end, whatever happened."""


class DirectDestination(RecordStaging):
    """A destination that a second Spark job feeds with the staged records, in order, at least once.

    Its sender acks or nacks single records; a delivery that was acked in part goes on behind its consumer's offset.
    """

    placement = "direct"
    batch: ClassVar[int] = 1_000
    """How many records :meth:`Sender.send` is given at a time, at most."""

    @abstractmethod
    def sender(self, task: SenderTask) -> Sender:
        """Return a sender for one delivery. Runs in a task."""
