"""What a step is at rest: its plan, and the decision that is fixed when it is prepared (DELIVERY.md, One step)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.learn import learn


class Part(msgspec.Struct, frozen=True):
    """What one task staged for one delivery."""

    name: str
    records: int
    bytes: int
    sha256: str


class Range(msgspec.Struct, frozen=True):
    """The positions ``(start, end]`` of one source in one step."""

    source: str
    generation: int
    start: Any
    end: Any
    offset: int
    """How many records of the source lie before it: the offset of its first record."""
    origin: str = ""
    """The connector whose records these are, where it is not ``source`` itself: of a catch-up, or of dead letters."""

    @property
    def connector(self) -> str:
        """The connector whose records these are."""
        return self.origin or self.source


class Reach(msgspec.Struct, frozen=True):
    """The positions ``(start, end]`` of a source itself, where its records are logged while a step stages them."""

    start: Any
    end: Any


class MemoryPart(msgspec.Struct, frozen=True):
    """A file of what a processor remembers: what one step added, or all that mattered then."""

    name: str
    entries: int
    bytes: int
    sha256: str
    number: int
    """The newest entry's: how many records had come to the processor."""
    at_ns: int
    """The newest entry's time."""


class Memory(msgspec.Struct, frozen=True):
    """What a processor remembers, in the order in which it came."""

    parts: list[MemoryPart] = []
    count: int = 0
    """Records with a key that have come to it."""
    generations: dict[str, int] = {}
    """Those that the sources had."""

    def under(self, generations: Mapping[str, int]) -> Memory:
        """What a step begins with: nothing, once a source was rewound or has become another one."""
        same = all(generations.get(source, was) == was for source, was in self.generations.items())
        return Memory(self.parts if same else [], self.count, dict(generations))


class Plan(msgspec.Struct, frozen=True):
    """Written before anything is read."""

    step: int
    clock_ns: int
    """The step's time: ``now()`` and ``readAt``, so that a repeat gives the same bytes."""
    ranges: list[Range]
    targets: dict[str, dict[str, str | None]] = {}
    """What each destination was when the step was planned: its plugin and what it owns."""
    hashes: dict[str, str] = {}
    """The delivery hash of each consumer, computed once; under the empty name the step's own, for processors."""
    reads: str = "positions"
    """What its ranges are: ``positions`` of the sources, or offsets of the log of ``records`` or of its ``join``."""
    only: str = ""
    """The destination that this step is for, which catches up; empty: all of them."""
    nacked: dict[str, list[int]] = {}
    """Of a step for one destination: by source, offsets of records that made their nack and dead letter before."""
    logs: dict[str, Reach] = {}
    """Of a step that is logged as it is staged: by source, what it reads of the source itself."""
    replay: int = 0
    """Of a step that sends dead letters again: which replay's; positions in its ranges are keys of letters."""
    memory: dict[str, Memory] = {}
    """By node, what processors remember of the steps before: a repeat of the step meets the same."""
    named: list[dict[str, Any]] = []
    """The ranges as they are in delivery hashes: names of parts need no source (P8: the source may be gone)."""

    def is_for(self, consumer: str) -> bool:
        """Whether this destination is one of those that it moves on."""
        return self.only in ("", consumer)


class SourceCount(msgspec.Struct):
    """What became of the records of one source: ``read`` = ``acked`` + ``nacked``; filtered ones are acked."""

    read: int = 0
    filtered: int = 0
    nacked: int = 0


class Seen(msgspec.Struct):
    """The last record of one namespace in a step."""

    ordinal: int
    """Its place in the step's range of its source, from 0."""
    mode: str = "sync"
    """copy | complete | sync: where the collection stands after it."""


Namespaces = dict[str, dict[str, Seen]]
"""Source to namespace to its last record."""


class StagedDelivery(msgspec.Struct, frozen=True):
    """One consumer's share of a step, under its hash."""

    consumer: str
    kind: str
    hash: str
    staging: str
    parts: list[Part]
    target: dict[str, Any]
    skip: int = 0
    """What its name holds: 0, or the place of a dead letter that was found at publishing."""
    expected: dict[str, Any] = {}
    """The target behind it; at-most-once goes on from there whether it was published or not."""
    origins: list[Part] = []
    """Beside the parts, where each record comes from, of a destination that stages something else than records."""

    @property
    def records(self) -> int:
        """How many records it holds."""
        return sum(part.records for part in self.parts)


class Child(msgspec.Struct, frozen=True):
    """A range of a split delivery's records that is still to be sent."""

    skip: int
    take: int
    single: bool = False
    """One record at a time."""


class Progress(msgspec.Struct, frozen=True):
    """How far a delivery is that was acked in part, or split."""

    handled: int = 0
    """Records of it that are handled, from the front."""
    pending: list[Child] = []
    """What is still to be sent, in order, once it is split."""
    split: bool = False
    """It is sent as children, also when all of them are sent: never under its own name again."""
    namespaces: dict[str, int] = {}
    """Namespace to the last place in it that is handled, where acks went ahead of ``handled``."""
    refused: int = 0
    """Records among the handled ones that the destination refused."""


class Letter(msgspec.Struct, frozen=True):
    """A dead letter that was found at publishing: a delivery of its own (DELIVERY.md, When publishing fails)."""

    delivery: StagedDelivery
    consumer: str
    """The destination that refused the record."""
    place: int
    """The record's place in that destination's delivery."""
    nack: tuple[str, str]
    """Code and message."""
    archive: tuple[str, int] = ("", 0)
    """File and row of the archive that hold the record: where its staging is lost it is staged again from there."""


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
    """Of the delivery that takes it to the dead-letter queue."""
    missed: str = ""
    """The destinations that have no copy of the record, as JSON; empty: none has."""
    part: str = ""
    """The file of the archive that holds the record."""
    line: int = 0
    """Its row in that file."""
    again: tuple[int, int] | None = None
    """Of a letter that failed again, its step and number: it keeps its place in the index."""


class LetterPart(msgspec.Struct, frozen=True):
    """A file of the archive of dead letters."""

    name: str
    letters: int
    bytes: int
    sha256: str


class Decision(msgspec.Struct, frozen=True):
    """Fixed in one transaction; from there on it never changes, whatever happens to code, file or process."""

    splits: list[list[dict[str, Any]]]
    """The splits of each task, so that staging that is lost can be rebuilt to the same parts."""
    sources: dict[str, SourceCount]
    deliveries: list[StagedDelivery]
    window: str
    filtered: dict[str, int] = {}
    """Records that each node dropped, destination by destination for those behind the fan-out."""
    nacked: dict[str, int] = {}
    """Nacks by ``node code``."""
    namespaces: Namespaces = {}
    once: bool = False
    """At-most-once: positions and offsets moved with it, and it is never sent again."""
    memory: dict[str, Memory] = {}
    """By node, what processors remember from here on."""


def encode(value: msgspec.Struct) -> str:
    """As the store keeps it."""
    return msgspec.json.encode(value).decode()


learn(Plan, Decision, Letter, Progress)
