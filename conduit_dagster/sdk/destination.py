"""Interface of destinations, and the results and errors of publishing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, cast

from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk.context import (
    ConnectorContext,
    ConnectorSettings,
    Dataset,
    IdempotencyKeys,
    Strategy,
    dataset_at,
)
from conduit_dagster.sdk.promises import withdraw
from conduit_dagster.sdk.source import Keys
from conduit_dagster.sdk.staging import Delivery, RecordWriter, Refusal, Target, Writer, WriterTask, staged_records

Claim = Literal["split", "nacked"]
Claimed = Literal["split", "nacked", "delivered"]


NACKED_TOGETHER = 1_000
"""Maximum number of refused records that the engine nacks in one transaction: naming more at a time gains nothing."""


class Rejected(Exception):  # noqa: N818  # a verdict on a record, not a fault of the program
    """Raised by ``publish`` to name refused records. Nothing of the delivery has been written.

    ``place``: the first refused record, counted from 0 in this delivery (for a child, in the child). ``more``: further
    refused records, in order; nacking them together is much faster than one by one. Give it, empty or not, if the
    destination knows of all refused records: all others are then sent together. Leave it out if the destination reports
    only one record. Nacks are taken in the order given.
    """

    def __init__(self, place: int, nack: Nack, more: Sequence[Refusal] | None = None) -> None:
        # what is no nack is reported by the engine, with the node
        said = getattr(nack, "message", nack)
        super().__init__(f"record {place}: {said}" + (f", and {len(more)} more" if more else ""))
        self.place = place
        self.nack = nack
        self.more = more or ()
        self.names_all = more is not None
        """Whether no other record is refused, but for more than are nacked together."""

    @property
    def refusals(self) -> list[Refusal]:
        """All refused records, in order, each once."""
        return sorted({one.place: one for one in (*self.more, Refusal(self.place, self.nack))}.values())


class AlreadyClaimed(Exception):  # noqa: N818  # as above
    """Raised by ``publish`` if the delivery's hash is claimed at the destination as split or nacked."""

    def __init__(self, state: Claim) -> None:
        super().__init__(state)
        self.state: Claim = state


class Destination(ABC):
    """A destination of records. Tasks stage each delivery under its hash; the subclass determines how it is published.

    Plugins derive from :class:`StagedDestination`, :class:`DriverDestination` or :class:`DirectDestination`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[ConnectorSettings]] = ConnectorSettings
    placement: ClassVar[Literal["staged", "driver", "direct"]]
    """Set by the base class of the kind."""
    strategies: ClassVar[frozenset[Strategy]] = frozenset({"at-least-once", "at-most-once"})
    """Strategies it supports; ``exactly-once`` only if it stores the delivery hash or names its output by it."""
    divisible: ClassVar[bool] = False
    """Whether it accepts children: deliveries with ``take``, a range of the staged records."""
    skips_records: ClassVar[bool] = False
    """Whether it accepts children that leave out records of their range (``Delivery.without``): the records between
    refused ones are then sent in one delivery. Any destination that reads its staging with ``staged_records`` or
    ``staged_lines`` can.
    """
    reads_keys: Keys = Keys.ALL
    """Keys of written records that it reads."""
    changes_records: ClassVar[bool] = True
    """Whether ``writer`` may change the records passed to it, and so needs copies."""

    takes_rows: ClassVar[bool] = False
    """Whether its writer accepts :class:`Rows`: a plan without processors then stays columnar."""

    takes_payloads: ClassVar[bool] = False
    """Whether its writer accepts :class:`Payloads`, and reads them as such. Otherwise it gets a list of records."""

    prints: ClassVar[bool] = False
    """Whether it shows records to people, as a log does: the pipeline's redacted fields are then masked."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        withdraw(cls, Destination, ("changes_records", "takes_rows", "takes_payloads", "reads_keys"), ("writer",))
        if hasattr(cls, "name") and not hasattr(cls, "placement"):
            kinds = "StagedDestination, DriverDestination or DirectDestination"
            raise TypeError(f"{cls.__name__} must derive from {kinds}")

    def __init__(self, settings: ConnectorSettings, context: ConnectorContext) -> None:
        self.settings = settings
        self.context = context

    @classmethod
    def strategies_with(cls, settings: Mapping[str, str]) -> frozenset[Strategy]:
        """Return the strategies it supports with these settings, given as written: a subset of :attr:`strategies`."""
        return cls.strategies

    @property
    def owned(self) -> str | None:
        """Name of a resource that only one destination may write to, such as an absolute path; None if any may."""
        return None

    @property
    def address(self) -> str | None:
        """Where it writes, for display, without secrets. A changed address is refused while a step is prepared."""
        return self.owned

    @property
    def hashes_at(self) -> str | None:
        """Where it stores delivery hashes, as far as :attr:`address` does not say it: the setting and its value.

        A changed one, like a changed address, is refused while a step is prepared: the step could have been delivered,
        and would not be found.
        """
        return None

    @property
    def dataset(self) -> Dataset | None:
        """The data set it writes to, as lineage tools name it; None if it is not a single one, or has no such name."""
        return dataset_at(self.address)

    @property
    def declared_columns(self) -> Sequence[tuple[str, str]]:
        """Name and type of each column, as far as the settings declare them; otherwise empty."""
        return ()

    def row_count(self) -> int | None:
        """Return the current number of rows, those of other writers included; None if counting takes long.

        Like :meth:`preview`, called on a separate instance while the pipeline may be writing.
        """
        return None

    def preview(self, rows: int) -> Sequence[Mapping[str, Any]]:
        """Return at most ``rows`` existing rows, as column to value.

        Empty by default, and wherever rows can't be read or are not made of the fields of ``.Payload.After``.
        """
        return ()

    def field_of(self, column: str) -> str | None:
        """Return the field of ``.Payload.After`` that fills a column; None if it is not a single field."""
        return column

    def check(self) -> None:  # noqa: B027  # most have nothing to try beforehand
        """Raise if the destination can't be written at all. Called before anything is read."""

    def fence(self, epoch: int) -> None:  # noqa: B027  # most keep no connection
        """End everything that owners of lower epochs hold open there. Called once per run, before publishing."""

    def close(self) -> None:  # noqa: B027  # as above
        """Release resources. Called on the driver at the end of a run. A later run may use the same object again."""

    def staging(self, default: str) -> str:
        """Return the URL of the folder for staged parts; ``default`` is the pipeline's own."""
        return default

    def target(self, previous: Target | None) -> Target:
        """Return the target of the next delivery, fixed when its step is prepared. ``previous``: the last result."""
        return previous or {}

    @abstractmethod
    def writer(self, task: WriterTask) -> Writer:
        """Return a writer for one task."""

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the destination already has the whole delivery. Compare bytes: a mark proves nothing.

        Source: DELIVERY.md, Start.
        """
        return False

    def never_takes(self, hashes: str | None, delivery: Delivery) -> bool:
        """Return whether the place that :attr:`hashes_at` named before, ``hashes``, neither has nor ever takes this
        delivery, so that the setting may change although its step is prepared."""
        return False

    def expected(self, delivery: Delivery) -> Target:
        """Return the target that follows this delivery once it is published; at-most-once stores it first."""
        return delivery.target

    def claim(self, delivery: Delivery, state: Claim) -> Claimed:
        """Store ``state`` under the delivery's hash if nothing is stored there; return the stored state.

        This excludes that both the late publish of a frozen owner and our decision take effect (docs/delivery.md, When
        publishing fails). A destination that stores no hash has nothing to claim.
        """
        return state

    def claim_all(self, deliveries: Sequence[Delivery], state: Claim) -> list[Claimed]:
        """Claim several deliveries of one step, in order; return the stored state of each. May be repeated."""
        return [self.claim(delivery, state) for delivery in deliveries]

    def settled(self, delivery: Delivery) -> Target:
        """Return the target that follows a delivery that :meth:`holds` found at the destination.

        Make the delivery durable first: its writer may have died before syncing it.
        """
        return delivery.target

    def retarget(self, delivery: Delivery) -> Target | None:
        """Return a new target for a prepared delivery whose target is lost, if the settings allow it; else None."""
        return None


class RecordStaging(Destination):
    """A destination whose tasks stage whole records with their origins, so that any range can be sent again."""

    divisible = True
    skips_records = True
    changes_records = False

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer that stages records with their origins."""
        return RecordWriter(task)


class StagedDestination(Destination):
    """A destination whose tasks stage with its own writer, and which the driver publishes to.

    Each delivery is published all or nothing, under its hash. The exception from ``publish`` decides what happens
    (docs/delivery.md, When publishing fails). A ``ConduitError`` or ``OSError`` is an outage, never a nack: the run
    stops and repeats the same delivery. :class:`Rejected` nacks the records that it names. Anything else is an
    unclassified bulk error: a ``divisible`` destination gets the delivery again as children.
    """

    placement = "staged"

    def staged_row(self, delivery: Delivery, place: int) -> Record | None:
        """Return the delivery's record at this place, from its staged parts alone; None if they do not suffice.

        Called for a ``divisible`` destination that refuses a record of a step whose source or code has changed since it
        was prepared; the result becomes the dead letter. It must restore payloads, key, operation, and the metadata
        that describes the kind of change.
        """
        return None

    @abstractmethod
    def publish(self, delivery: Delivery) -> Target:
        """Publish the delivery durably, all or nothing; return the target for the next one.

        May be called again for the same delivery.
        """


class DriverDestination(RecordStaging, StagedDestination):
    """A destination whose records are few enough for the driver: ``deliver`` receives them in order, at least once."""

    placement = "driver"

    @abstractmethod
    def deliver(self, records: Iterable[Record], delivery: Delivery) -> None:
        """Write the delivery's records, in order. An exception fails the delivery, which is then repeated whole."""

    def publish(self, delivery: Delivery) -> Target:
        """Read the staged records and pass them to :meth:`deliver`."""
        given: Any = self.deliver((staged.record for staged in staged_records(delivery)), delivery)
        if _refuses(given):
            # returned instead of raised, it would count as a success: the record would be lost without a word
            raise FatalError(
                f"deliver() returned a {type(given).__name__}, which refuses nothing",
                code="plugin.result_invalid",
                fix="raise Rejected(place, Nack(code, message)) for a record that is refused",
            )
        return delivery.target


def _refuses(given: Any) -> bool:
    """Return whether something returned, or one of a list, says that a record is refused."""
    found = cast("list[Any]", given) if isinstance(given, list) else [given]
    return any(isinstance(one, Nack | Refusal | Receipt | Exception) for one in found)


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
