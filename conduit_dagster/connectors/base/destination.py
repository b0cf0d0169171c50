"""What all destinations share, wherever their records are published."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from conduit_dagster.connectors.base.context import ConnectorContext, ConnectorSettings, Strategy
from conduit_dagster.connectors.base.delivery import Delivery, Target
from conduit_dagster.connectors.base.ranges import Keys
from conduit_dagster.connectors.base.verdicts import Claim, Claimed
from conduit_dagster.connectors.base.writer import Writer, WriterTask


class Destination(ABC):
    """Where records go: tasks stage each delivery, under its hash; its kind says who publishes it, and how.

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
        """What it can keep with these settings, as the file has them: never more than :attr:`strategies`."""
        return cls.strategies

    @property
    def owned(self) -> str | None:
        """The one thing that nobody else may write to, such as a file's absolute path; None where sharing is fine."""
        return None

    @property
    def address(self) -> str | None:
        """Where it writes to, for people, without secrets; another one under a prepared step is refused."""
        return self.owned

    def check(self) -> None:  # noqa: B027  # most have nothing to try beforehand
        """Raises where it can't be written at all: before anything is read."""

    def fence(self, epoch: int) -> None:  # noqa: B027  # most keep no connection
        """Called once per run, before anything is published: ends what owners of lower epochs hold open there."""

    def close(self) -> None:  # noqa: B027  # as above
        """Called at the end of a run, on the driver. A later run may use the same object again."""

    def staging(self, default: str) -> str:
        """The folder URL where parts are staged; ``default`` is the pipeline's own."""
        return default

    def target(self, previous: Target | None) -> Target:
        """What a delivery is published onto, fixed when its step is prepared. ``previous``: the last one's result."""
        return previous or {}

    @abstractmethod
    def writer(self, task: WriterTask) -> Writer:
        """A writer for one task."""

    def holds(self, delivery: Delivery) -> bool:
        """Whether all of it is there already. About bytes, not about our mark (DELIVERY.md, Start)."""
        return False

    def expected(self, delivery: Delivery) -> Target:
        """The target for the next delivery, once this one is published; at-most-once stores it before it publishes."""
        return delivery.target

    def claim(self, delivery: Delivery, state: Claim) -> Claimed:
        """Puts ``state`` under the delivery's hash if nothing is there, and gives what is there then.

        So that a frozen owner's late success and our decision can't both happen (DELIVERY.md, When publishing fails).
        A destination that stores no hash has nothing to claim.
        """
        return state

    def settled(self, delivery: Delivery) -> Target:
        """The target for the next delivery, after one that :meth:`holds` found there.

        Makes it durable: whoever wrote it may have died before that.
        """
        return delivery.target

    def retarget(self, delivery: Delivery) -> Target | None:
        """Another target for a prepared delivery whose own one is lost, where the settings allow it; else None."""
        return None
