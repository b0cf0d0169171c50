"""The stored form of a step: its plan, and the decision that is fixed when it is prepared (DELIVERY.md, One step).

Unknown fields are refused: one that only a newer version knows, such as further dead letters, must not be passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.recovery.errors import FatalError

T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file that one task staged for one delivery."""

    name: str
    records: int
    bytes: int
    sha256: str


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The positions ``(start, end]`` of one source in one step."""

    source: str
    generation: int
    start: Any
    end: Any
    offset: int
    """Number of the source's records before the range: the offset of its first record."""
    origin: str = ""
    """The connector that the records come from, if it is not ``source`` itself: for a catch-up or dead letters."""

    @property
    def connector(self) -> str:
        """The connector that the records come from."""
        return self.origin or self.source


class LoggedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The positions ``(start, end]`` of a source itself, if its records are logged while a step stages them."""

    start: Any
    end: Any


class ProcessorStatePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state file of a stateful processor: the additions of one step, or everything that still mattered then."""

    name: str
    entries: int
    bytes: int
    sha256: str
    number: int
    """Number of the newest entry: how many records the processor had received."""
    at_ns: int
    """Time of the newest entry."""


class ProcessorState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of a stateful processor, in order of arrival."""

    parts: list[ProcessorStatePart] = []
    count: int = 0
    """Number of records with a key that the processor has received."""
    generations: dict[str, int] = {}
    """Generations of the sources at that time."""

    def under(self, generations: Mapping[str, int]) -> ProcessorState:
        """Return the state that a step begins with: without parts if a source was rewound or reads other data."""
        same = all(generations.get(source, was) == was for source, was in self.generations.items())
        return ProcessorState(self.parts if same else [], self.count, dict(generations))


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plan of a step, written before anything is read."""

    step: int
    clock_ns: int
    """The step's time, for ``now()`` and ``readAt``: a repeat gives the same bytes."""
    ranges: list[Range]
    targets: dict[str, dict[str, str | None]] = {}
    """Each destination when the step was planned: its plugin and its target."""
    hashes: dict[str, str] = {}
    """The delivery hash of each consumer, computed once; the empty name holds the step's own hash, for processors."""
    reads: str = "positions"
    """Kind of its ranges: ``positions`` of the sources, or offsets of the log of ``records`` or of its ``join``."""
    only: str = ""
    """The only destination of this step, which is catching up; empty means all of them."""
    nacked: dict[str, list[int]] = {}
    """In a step for one destination: by source, offsets of records that were nacked before and have a dead letter."""
    logs: dict[str, LoggedRange] = {}
    """In a step whose records are logged while it is staged: by source, the range that it reads from the source."""
    replay: int = 0
    """The replay whose dead letters this step sends; positions in its ranges are then keys of letters. 0 means none."""
    memory: dict[str, ProcessorState] = {}
    """State of stateful processors after the previous steps, by node: a repeat of the step starts with the same."""
    named: list[dict[str, Any]] = []
    """The ranges as used in delivery hashes: naming parts must not require the source, which may be gone."""


class SourceCount(msgspec.Struct, forbid_unknown_fields=True):
    """Outcome counts of one source's records: ``read`` = ``acked`` + ``nacked``; filtered ones are acked."""

    read: int = 0
    filtered: int = 0
    nacked: int = 0


class LastInNamespace(msgspec.Struct, forbid_unknown_fields=True):
    """The last record of one namespace in a step."""

    ordinal: int
    """The record's place in the step's range of its source, from 0."""
    mode: str = "sync"
    """State of the collection after this record: copy | complete | sync."""


Namespaces = dict[str, dict[str, LastInNamespace]]
"""Source to namespace to its last record."""


class StagedDelivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One consumer's share of a step, under its hash."""

    consumer: str
    kind: str
    hash: str
    staging: str
    parts: list[Part]
    target: dict[str, Any]
    skip: int = 0
    """The skip in its name: 0, or the place of a dead letter found at publishing."""
    expected: dict[str, Any] = {}
    """The target after this delivery; at-most-once continues from it whether or not the delivery was published."""
    origins: list[Part] = []
    """Origins of the records, beside the parts, for a destination that does not stage whole records."""

    @property
    def records(self) -> int:
        """Number of records in the delivery."""
        return sum(part.records for part in self.parts)


class DeliveryChild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of a split delivery's records that is still to be sent."""

    skip: int
    take: int
    single: bool = False
    """Whether its records are sent one at a time."""
    without: list[int] = []
    """Ascending places in the range that are left out: they were refused before, and are ``marked``."""


class DeliveryProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Progress of a delivery that was partly acked, or split."""

    handled: int = 0
    """Number of its records that are handled, from the front."""
    pending: list[DeliveryChild] = []
    """Children still to be sent, in order, once it is split."""
    split: bool = False
    """Whether it is sent as children. Stays true once all are sent: it is never sent under its own hash again, or split
    again.
    """
    namespaces: dict[str, int] = {}
    """Last handled place by namespace, where acks went ahead of ``handled``."""
    refused: int = 0
    """Number of handled records that the destination refused, or an operator marked: these are not delivered."""
    marked: list[int] = []
    """Ascending places behind ``handled`` that the destination refused, or an operator marked: they are skipped when
    their turn comes.
    """


class LateLetter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters of records that were refused at publishing: a separate delivery.

    Source: DELIVERY.md, When publishing fails.
    """

    delivery: StagedDelivery
    consumer: str
    """The destination that refused the records."""
    place: int
    """The first record's place in that destination's delivery."""
    nack: tuple[str, str]
    """Code and message of the first record's nack."""
    archive: tuple[str, int] = ("", 0)
    """File and row of the first record in the archive; the others follow it. Used to stage them again if their staging
    is lost.
    """
    more: list[tuple[int, str, str]] = []
    """Place, code and message of every further record that was refused together with the first."""
    queue: dict[str, str | None] = {}
    """The dead-letter queue when the records were refused: its plugin and its target. It may have been edited since the
    step was planned. Empty in letters of an older version: the queue of the plan.
    """

    @property
    def nacks(self) -> list[tuple[str, str]]:
        """Code and message of each letter, in order."""
        return [self.nack, *((code, message) for _, code, message in self.more)]


EDIT_FAILED = "dead_letters.edit_failed"
"""Code of a letter whose record an edit of its replay refuses: the record reached no node of the pipeline."""


class DeadLetter(NamedTuple):
    """One row of the dead-letter index: where the record came from and why it was nacked. Not the record."""

    source: str
    generation: int
    position: str
    offset: int
    node: str
    code: str
    message: str
    namespace: str = ""
    hash: str = ""
    """Hash of the delivery to the dead-letter queue."""
    missed: str = ""
    """Destinations without a copy of the record, as JSON; empty means that none has one."""
    part: str = ""
    """The archive file that holds the record."""
    line: int = 0
    """Its row in that file."""
    again: tuple[int, int] | None = None
    """Step and number of a letter that failed again: it keeps its place in the index."""


class LetterPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the archive of dead letters."""

    name: str
    letters: int
    bytes: int
    sha256: str


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The decision of a step, fixed in one transaction and final, whatever changes in code, file or process."""

    splits: list[list[dict[str, Any]]]
    """The splits of each task, so that lost staging can be rebuilt to the same parts."""
    sources: dict[str, SourceCount]
    deliveries: list[StagedDelivery]
    window: str
    filtered: dict[str, int] = {}
    """Number of records that each node dropped, counted per destination for nodes after the fan-out."""
    nacked: dict[str, int] = {}
    """Nacks by ``node code``."""
    namespaces: Namespaces = {}
    once: bool = False
    """At-most-once: positions and offsets moved with the decision, and it is never sent again."""
    memory: dict[str, ProcessorState] = {}
    """State of stateful processors after this step, by node."""


def encode(value: msgspec.Struct) -> str:
    """Return the value in its stored form."""
    return msgspec.json.encode(value).decode()


def decode(text: str, kind: type[T]) -> T:
    """Return a value from its stored form. Raises ``FatalError`` (``state.version``) if another version wrote it."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise not_known(str(error)) from error


def not_known(what: str) -> FatalError:
    """Return the error for a step that another version wrote; ``what``: its unknown part."""
    return FatalError(
        f"the state store has a step in a form that this version of conduit-dagster does not know: {what}",
        code="state.version",
        fix="install the version of conduit-dagster that wrote it",
    )


learn(Plan, Decision, LateLetter, DeliveryProgress)
