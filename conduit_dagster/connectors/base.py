"""What a connector is: the interfaces of sources and destinations, for built-ins and for users alike.

``read`` and everything of a :class:`Writer` run in Spark tasks; the rest runs on the driver. Positions, horizons and
targets are JSON values, chosen by the connector and opaque to the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict

from conduit_dagster.expressions import Clock
from conduit_dagster.record import Nack, Record
from conduit_dagster.state.steps import Part
from conduit_dagster.turn import Turn

Position = Any
"""A JSON value: the boundary *after* a record, so that a source resumes exactly there (DELIVERY.md, Units)."""
Target = dict[str, Any]
Strategy = Literal["exactly-once", "at-least-once", "at-most-once"]


class ConnectorSettings(BaseModel):
    """Base of a connector's settings. Values arrive as strings, as in Conduit's files."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    open_keys: ClassVar[tuple[str, ...]] = ()
    """Patterns (``fnmatch``) of keys beyond the fields, such as ``format.options.*``."""


@dataclass(frozen=True)
class ConnectorContext:
    """What the engine tells a connector about where it stands."""

    pipeline: str
    connector: str
    root: str
    """The project root; relative paths in settings start there."""
    clock: Clock
    strategy: Strategy = "at-least-once"

    @property
    def full_id(self) -> str:
        """The id as Conduit writes it into metadata: ``pipeline:connector``."""
        return f"{self.pipeline}:{self.connector}"

    def resolve(self, path: str) -> str:
        """``path`` made absolute against the project root; a URL stays as it is."""
        return path if "://" in path else str(Path(self.root, path))


class Limit(NamedTuple):
    """How much one step may read from one source."""

    records: int
    bytes: int


class Split(msgspec.Struct):
    """A part of a source's range that one task reads."""

    start: Position
    ordinal: int
    """How many records of the step's range of this source lie before it."""
    records: int | None = None
    """How many records it holds, where that is known."""
    bytes: int = 0
    """Its weight, for spreading splits over tasks."""
    detail: dict[str, Any] = {}
    """Whatever else ``read`` needs; a JSON object."""


class Block(NamedTuple):
    """A few thousand records in source order, with what the engine may ask about the i-th of them."""

    records: list[Record]
    boundary: Callable[[int], Position]
    """The position right after record i."""
    complete: Callable[[int, Record], None] | None = None
    """Fills in the key and position of record i where ``read`` left them out (``ReadOptions.keys``)."""
    nacks: Mapping[int, tuple[str, Nack]] = {}
    """Records that were nacked before they were logged: by which node, and why."""

    @staticmethod
    def of(records: list[Record]) -> Block:
        """A block whose boundaries are its records' own positions."""
        positions = [record.position for record in records]
        return Block(records, positions.__getitem__)


class ReadOptions(NamedTuple):
    """What the plan lets a source leave out."""

    keys: bool = True
    """False where nothing in the plan looks at keys and positions."""
    block_records: int = 3_000
    block_bytes: int = 65_536


class Source(ABC):
    """Where records come from.

    A range ``(start, end]`` that was once given must be readable again with the same records in the same order, else
    ``replayable`` is False and the commit log has to keep them.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[ConnectorSettings]] = ConnectorSettings
    replayable: ClassVar[bool] = True
    sets_metadata: ClassVar[bool] = False
    """True where ``read`` itself sets ``opencdc.readAt`` and ``conduit.source.connector.id``; else the engine does."""
    identity_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that say which data this is; where one changes, the source starts anew under a new generation."""

    def __init__(self, settings: ConnectorSettings, context: ConnectorContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def initial(self) -> Position:
        """The position before the first record."""

    @abstractmethod
    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """The furthest position that one step may read to; ``start`` itself where there is nothing new.

        ``horizon`` is None while a pipeline runs on, else what :meth:`horizon` gave at the start of the run.
        """

    @abstractmethod
    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """The range cut into about ``n`` parts, in order."""

    @abstractmethod
    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """The split's records, block by block. Runs in a task."""

    def horizon(self) -> Any:
        """How far there is data now; a run that drains its sources stops there. Must not be None."""
        return {}

    def verify(self, start: Position, end: Position) -> None:  # noqa: B027  # most sources can't change behind our back
        """Raises ``FatalError`` when a range that was given before is not what it was: gone, replaced or cut off."""

    def gives_up(self, start: Position, end: Position) -> bool:
        """Whether a range that was planned, and never prepared, may be dropped because it is gone. Loses it."""
        return False

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """The source's position at a boundary that :meth:`read` gave inside this range."""
        return boundary

    def relocate(self, split: Split) -> Split:
        """A split of an earlier plan, with where its data is now."""
        return split

    def ack(self, upto: Position, generation: int) -> None:  # noqa: B027  # most sources have nothing to tell
        """Everything up to here is handled end to end. Monotone: a lower one, or of another generation, is ignored.

        Called after the position is durable in our store; it may be lost in a crash and is repeated at start.
        """

    def lag(self, position: Position) -> int | None:
        """How far ``position`` is behind the newest data, in the source's unit (:attr:`lag_unit`); None if unknown."""
        return None

    lag_unit: ClassVar[str] = "bytes"

    def place(self, position: Position) -> Any:
        """What of a position says where it is; it goes into the delivery hash, so no observation may be in it."""
        return position

    @property
    def unit(self) -> dict[str, Any]:
        """Which data this is: the plugin and its identity settings."""
        values = self.settings.model_dump(mode="json", by_alias=True)
        return {"plugin": self.name, **{key: values.get(key) for key in self.identity_settings}}


class Refusal(NamedTuple):
    """A record that a writer could not take: its place in the block, and why."""

    place: int
    nack: Nack


@dataclass(frozen=True)
class WriterTask:
    """Where a task's writer stages."""

    staging: str
    """URL of the folder for this execution of this delivery."""
    index: int
    """The task's place; parts in order of their index are the delivery in order."""
    token: str
    """Random, one per task attempt: a zombie's files never meet ours (DELIVERY.md, Stage)."""
    hash: str = ""
    """The delivery hash: the same for every attempt. For side effects of a writer's own."""
    turn: Turn = field(default_factory=Turn)
    """Names of single records: ``turn.key_of(record)``."""


class Writer(ABC):
    """Stages a task's share of a delivery. Runs in a task."""

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:  # noqa: B027  # most don't ask
        """Called before each ``write``: the i-th record comes from record ``first + origins[i]`` of the step's range.

        ``first`` and ``origins`` count the records of ``source`` from 0.
        """

    @abstractmethod
    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Takes a block, in order. Refused records are nacked, the others are in."""

    @abstractmethod
    def finish(self) -> Part | None:
        """Makes it durable and names it; None where nothing was written."""

    @abstractmethod
    def abort(self) -> None:
        """Called when the task fails, and not at all when it is killed."""


@dataclass(frozen=True)
class Delivery:
    """One step for one consumer, or a child of it (a range of its records), under its hash."""

    hash: str
    step: int
    consumer: str
    staging: str
    """URL of the folder with its parts; empty when it could not be found any more."""
    parts: tuple[Part, ...]
    target: Target
    skip: int = 0
    """A child's name holds it: how many records of the delivery lie before the child's first."""
    take: int | None = None
    """How many records of the parts a child holds, from ``skip`` on; None: the parts hold just this delivery."""

    @property
    def records(self) -> int:
        """How many records it holds."""
        return sum(part.records for part in self.parts) if self.take is None else self.take

    @property
    def bytes(self) -> int:
        """Its length in bytes as staged."""
        return sum(part.bytes for part in self.parts)


Claim = Literal["split", "nacked"]
Claimed = Literal["split", "nacked", "delivered"]


class Rejected(Exception):  # noqa: N818  # a verdict on a record, not a fault of the program
    """What ``publish`` raises when the destination names the record that it refuses. Nothing of the delivery is in.

    ``place`` counts the records of this delivery (of the child, for a child) from 0.
    """

    def __init__(self, place: int, nack: Nack) -> None:
        super().__init__(f"record {place}: {nack.message}")
        self.place = place
        self.nack = nack


class AlreadyClaimed(Exception):  # noqa: N818  # as above
    """What ``publish`` raises when the delivery's hash is claimed at the destination as split or nacked."""

    def __init__(self, state: Claim) -> None:
        super().__init__(state)
        self.state: Claim = state


class Destination(ABC):
    """Where records go: tasks stage, the driver publishes each delivery all or nothing under its hash.

    What ``publish`` raises decides what becomes of the delivery (DELIVERY.md, When publishing fails): a
    ``ConduitError`` or an ``OSError`` is an outage, never a nack: the run stops and repeats the same delivery.
    :class:`Rejected` names a record, which is nacked. Anything else is an unclassified bulk error: where the
    destination is ``divisible`` the delivery is sent again as children.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[ConnectorSettings]] = ConnectorSettings
    placement: ClassVar[Literal["staged", "driver", "direct"]] = "staged"
    strategies: ClassVar[frozenset[Strategy]] = frozenset({"at-least-once", "at-most-once"})
    """What it can keep; ``exactly-once`` only where it stores, or is named by, the delivery hash."""
    divisible: ClassVar[bool] = False
    """Whether ``publish`` takes children: deliveries with ``take``, a range of the staged records."""

    def __init__(self, settings: ConnectorSettings, context: ConnectorContext) -> None:
        self.settings = settings
        self.context = context

    @property
    def reads_key(self) -> bool:
        """Whether a written record's key or position is looked at."""
        return True

    @property
    def changes_records(self) -> bool:
        """Whether ``writer`` may change the records it is given, and so needs its own copies."""
        return True

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

    @abstractmethod
    def publish(self, delivery: Delivery) -> Target:
        """Makes it visible and durable, all or nothing; may be repeated. Gives the target for the next delivery."""

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


class DriverDestination(Destination):
    """A destination whose records are few enough for the driver: ``deliver`` gets them in order, at least once."""

    placement = "driver"
    divisible = True

    @abstractmethod
    def deliver(self, records: Iterable[Record], delivery: Delivery) -> None:
        """Takes the delivery's records, in order. Raising fails the delivery; it is then repeated whole."""

    def writer(self, task: WriterTask) -> Writer:
        """Stages the records, each with its origin."""
        from conduit_dagster.connectors.staged import RecordWriter

        return RecordWriter(task)

    @property
    def changes_records(self) -> bool:
        """Staging only encodes."""
        return False

    def publish(self, delivery: Delivery) -> Target:
        """Reads the staged records back and hands them to :meth:`deliver`."""
        from conduit_dagster.connectors.staged import staged_records

        self.deliver((staged.record for staged in staged_records(delivery)), delivery)
        return delivery.target


class Receipt(NamedTuple):
    """What became of a record that a sender was given."""

    place: int
    """As it was numbered in ``send``."""
    nack: Nack | None = None
    upto: bool = False
    """An ack that means this record and every one before it."""


@dataclass(frozen=True)
class SenderTask:
    """What a sender is told before its first record."""

    hash: str
    """The delivery hash: the same for every attempt."""
    consumer: str
    step: int
    turn: Turn = field(default_factory=Turn)
    """Names of single records: ``turn.key_of(record)``."""


class Sender(ABC):
    """Sends staged records to where they go. Runs in a task; one instance sees one delivery, or the rest of one."""

    @abstractmethod
    def send(self, records: list[Record], first: int) -> Iterable[Receipt] | None:
        """Takes records in order; the i-th is numbered ``first + i``. None acks all of them.

        Receipts may come in any order, and later, from :meth:`finish`: what has none is not acked. Raising
        ``OSError`` or a ``ConduitError`` is an outage; anything else is a bulk error that names no record.
        """

    def finish(self) -> Iterable[Receipt]:
        """Waits for what is outstanding. Called after the last record, and once in every flush interval before."""
        return ()

    def close(self) -> None:  # noqa: B027  # most hold nothing open
        """Called at the end, whatever happened."""


class DirectDestination(Destination):
    """A destination that a second Spark job feeds with the staged records, in order, at least once.

    Its sender acks or nacks single records; a delivery that was acked in part goes on behind its consumer's offset.
    """

    placement = "direct"
    divisible = True
    batch: ClassVar[int] = 1_000
    """How many records :meth:`Sender.send` is given at a time, at most."""

    @abstractmethod
    def sender(self, task: SenderTask) -> Sender:
        """A sender for one delivery. Runs in a task."""

    def writer(self, task: WriterTask) -> Writer:
        """Stages the records, each with its origin."""
        from conduit_dagster.connectors.staged import RecordWriter

        return RecordWriter(task)

    @property
    def changes_records(self) -> bool:
        """Staging only encodes."""
        return False

    def publish(self, delivery: Delivery) -> Target:
        """Never called: the engine runs the sender in a job of its own."""
        raise NotImplementedError
