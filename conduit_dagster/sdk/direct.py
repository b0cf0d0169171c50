"""Destinations that a second Spark job feeds record by record."""

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
    """The record's number, as counted in ``send``."""
    nack: Nack | None = None
    upto: bool = False
    """True for an ack of this record and all before it."""


@dataclass(frozen=True)
class SenderTask:
    """Context of a sender, known before its first record."""

    hash: str
    """The delivery hash: the same for every attempt."""
    consumer: str
    step: int
    idempotency: IdempotencyKeys = field(default_factory=IdempotencyKeys)
    """Idempotency keys of single records: ``idempotency.key_of(record)``, asked for within ``send``."""


class Sender(ABC):
    """Sends staged records. Runs in a task; one instance sends one delivery, or the rest of one."""

    @abstractmethod
    def send(self, records: list[Record], first: int) -> Iterable[Receipt] | None:
        """Send records of one source in order; record ``i`` has the number ``first + i``. Returning None acks them all.

        Receipts may come in any order, also later from :meth:`finish`: a record without a receipt is not acked. Raising
        ``OSError`` or a ``ConduitError`` means an outage; any other exception is a bulk error that names no record.
        """

    def finish(self) -> Iterable[Receipt]:
        """Wait for outstanding acks. Called after the last record, and at every flush interval before that."""
        return ()

    def close(self) -> None:  # noqa: B027  # most hold nothing open
        """Release resources. Always called at the end, also after an error."""


class DirectDestination(RecordStaging):
    """A destination that a second Spark job feeds with the staged records, in order, at least once.

    Its sender acks or nacks single records; a partially acked delivery resumes after its consumer's offset.
    """

    placement = "direct"
    batch: ClassVar[int] = 1_000
    """Maximum number of records per call of :meth:`Sender.send`."""

    @abstractmethod
    def sender(self, task: SenderTask) -> Sender:
        """Return a sender for one delivery. Runs in a task."""
