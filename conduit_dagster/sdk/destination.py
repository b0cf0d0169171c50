"""Destinations that the driver publishes to, and what they answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from conduit_dagster.record import Nack, Record
from conduit_dagster.sdk.context import ConnectorContext, ConnectorSettings, Strategy
from conduit_dagster.sdk.dataset import Dataset, dataset_at
from conduit_dagster.sdk.source import Keys
from conduit_dagster.sdk.staging import Delivery, RecordWriter, Target, staged_records
from conduit_dagster.sdk.writer import Refusal, Writer, WriterTask

Claim = Literal["split", "nacked"]
Claimed = Literal["split", "nacked", "delivered"]


NACKED_TOGETHER = 1_000
"""Most refused records that the engine nacks in one transaction: it is of no use to name more of them at once."""


class Rejected(Exception):  # noqa: N818  # a verdict on a record, not a fault of the program
    """Raised by ``publish`` if the destination names the record that it refuses. Nothing of the delivery is written.

    ``place`` counts the records of this delivery (of the child, for a child) from 0. Name the first record that is
    refused: nacks are taken in the order in which they are named. ``more``: further records of the delivery that are
    refused, in order; they are nacked together with it, which is much faster than one by one. A destination that knows
    only one leaves it out.
    """

    def __init__(self, place: int, nack: Nack, more: Sequence[Refusal] = ()) -> None:
        super().__init__(f"record {place}: {nack.message}" + (f", and {len(more)} more" if more else ""))
        self.place = place
        self.nack = nack
        self.more = more

    @property
    def refusals(self) -> list[Refusal]:
        """All records that it names, in order."""
        return sorted({one.place: one for one in (*self.more, Refusal(self.place, self.nack))}.values())


class AlreadyClaimed(Exception):  # noqa: N818  # as above
    """Raised by ``publish`` if the delivery's hash is claimed at the destination as split or nacked."""

    def __init__(self, state: Claim) -> None:
        super().__init__(state)
        self.state: Claim = state


class Destination(ABC):
    """A destination of records: tasks stage each delivery, under its hash; subclasses say who publishes it, and how.

    A plugin derives from a kind: :class:`StagedDestination`, :class:`DriverDestination` or :class:`DirectDestination`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[ConnectorSettings]] = ConnectorSettings
    placement: ClassVar[Literal["staged", "driver", "direct"]]
    """The kind's own."""
    strategies: ClassVar[frozenset[Strategy]] = frozenset({"at-least-once", "at-most-once"})
    """What it can keep; ``exactly-once`` only where it stores, or is named by, the delivery hash."""
    divisible: ClassVar[bool] = False
    """Whether it takes children: deliveries with ``take``, a range of the staged records."""
    skips_records: ClassVar[bool] = False
    """Whether it takes children that leave out records of their range (``Delivery.without``), as every destination can
    that reads its staging with ``staged_records`` or ``staged_lines``: the records between refused ones are then sent
    in one go."""
    reads_keys: Keys = Keys.ALL
    """Which keys of written records are looked at."""
    changes_records: ClassVar[bool] = True
    """Whether ``writer`` may change the records it is given, and so needs its own copies."""

    takes_rows: ClassVar[bool] = False
    """Whether its writer takes :class:`Rows` as they are: then a plan without processors stays columnar."""

    prints: ClassVar[bool] = False
    """Whether people see the records, as in a log: fields that the pipeline redacts are masked."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "name") and not hasattr(cls, "placement"):
            kinds = "StagedDestination, DriverDestination or DirectDestination"
            raise TypeError(f"{cls.__name__} must derive from {kinds}")

    def __init__(self, settings: ConnectorSettings, context: ConnectorContext) -> None:
        self.settings = settings
        self.context = context

    @classmethod
    def strategies_with(cls, settings: Mapping[str, str]) -> frozenset[Strategy]:
        """Return the guarantees it can keep with these settings, as in the file: never more than :attr:`strategies`."""
        return cls.strategies

    @property
    def owned(self) -> str | None:
        """The one thing that no other destination may write to, such as an absolute path; None if it may be shared."""
        return None

    @property
    def address(self) -> str | None:
        """Where it writes to, for people, without secrets; another one under a prepared step is refused."""
        return self.owned

    @property
    def dataset(self) -> Dataset | None:
        """What it writes to, as lineage tools name it; None if that is no single thing, or has no such name."""
        return dataset_at(self.address)

    @property
    def declared_columns(self) -> Sequence[tuple[str, str]]:
        """Name and type of each column, as far as the settings name them; empty if they do not."""
        return ()

    def row_count(self) -> int | None:
        """Return how many rows are there now, whoever wrote them; None where counting takes more than a moment.

        Called, as :meth:`preview` is, on an instance of its own, while the pipeline may write with another one.
        """
        return None

    def preview(self, rows: int) -> Sequence[Mapping[str, Any]]:
        """Return some of the rows that are there, at most ``rows``, by column.

        Empty, which is the default, where rows aren't made of the fields of ``.Payload.After``, or can't be read.
        """
        return ()

    def field_of(self, column: str) -> str | None:
        """Return the field of ``.Payload.After`` that a column is filled from; None if it is not one field."""
        return column

    def check(self) -> None:  # noqa: B027  # most have nothing to try beforehand
        """Raise if it can't be written at all. Called before anything is read."""

    def fence(self, epoch: int) -> None:  # noqa: B027  # most keep no connection
        """Called once per run, before anything is published: ends what owners of lower epochs hold open there."""

    def close(self) -> None:  # noqa: B027  # as above
        """Called at the end of a run, on the driver. A later run may use the same object again."""

    def staging(self, default: str) -> str:
        """Return the URL of the folder where parts are staged; ``default`` is the pipeline's own."""
        return default

    def target(self, previous: Target | None) -> Target:
        """Return what a delivery is published onto, fixed when its step is prepared. ``previous``: the last result."""
        return previous or {}

    @abstractmethod
    def writer(self, task: WriterTask) -> Writer:
        """Return a writer for one task."""

    def holds(self, delivery: Delivery) -> bool:
        """Return whether all of it is there already, judged by bytes, not by a mark (DELIVERY.md, Start)."""
        return False

    def expected(self, delivery: Delivery) -> Target:
        """Return the target for the next delivery, once this is published; at-most-once stores it before publishing."""
        return delivery.target

    def claim(self, delivery: Delivery, state: Claim) -> Claimed:
        """Store ``state`` under the delivery's hash if nothing is there; return what is there afterwards.

        So that a frozen owner's late success and our decision can't both happen (DELIVERY.md, When publishing fails).
        A destination that stores no hash has nothing to claim.
        """
        return state

    def claim_all(self, deliveries: Sequence[Delivery], state: Claim) -> list[Claimed]:
        """Claim several deliveries of one step, in order; return what is there afterwards for each. May be repeated."""
        return [self.claim(delivery, state) for delivery in deliveries]

    def settled(self, delivery: Delivery) -> Target:
        """Return the target for the next delivery, after one that :meth:`holds` found there.

        Make it durable: its writer may have died before that.
        """
        return delivery.target

    def retarget(self, delivery: Delivery) -> Target | None:
        """Another target for a prepared delivery whose own one is lost, where the settings allow it; else None."""
        return None


class RecordStaging(Destination):
    """A destination whose tasks stage whole records, each with its origin, so that any range can be sent again."""

    divisible = True
    skips_records = True
    changes_records = False

    def writer(self, task: WriterTask) -> Writer:
        """Stage the records, each with its origin."""
        return RecordWriter(task)


class StagedDestination(Destination):
    """Tasks stage with a writer of its own, the driver publishes each delivery all or nothing under its hash.

    What ``publish`` raises decides what becomes of the delivery (DELIVERY.md, When publishing fails): a
    ``ConduitError`` or an ``OSError`` is an outage, never a nack: the run stops and repeats the same delivery.
    :class:`Rejected` names a record, which is nacked. Anything else is an unclassified bulk error: where the
    destination is ``divisible`` the delivery is sent again as children.
    """

    placement = "staged"

    def staged_row(self, delivery: Delivery, place: int) -> Record | None:
        """Return the delivery's record at this place, from its staged parts alone; None if they can't tell.

        Asked of a ``divisible`` destination that refuses a record of a step whose source or code has changed since it
        was prepared: the dead letter is made of it. Payloads, key and operation count, and metadata that says what
        kind of change it is.
        """
        return None

    @abstractmethod
    def publish(self, delivery: Delivery) -> Target:
        """Make it visible and durable, all or nothing; may be repeated. Return the target for the next delivery."""


class DriverDestination(RecordStaging, StagedDestination):
    """A destination whose records are few enough for the driver: ``deliver`` gets them in order, at least once."""

    placement = "driver"

    @abstractmethod
    def deliver(self, records: Iterable[Record], delivery: Delivery) -> None:
        """Write the delivery's records, in order. Raising fails the delivery; it is then repeated whole."""

    def publish(self, delivery: Delivery) -> Target:
        """Read the staged records and pass them to :meth:`deliver`."""
        self.deliver((staged.record for staged in staged_records(delivery)), delivery)
        return delivery.target
