"""What is stored, published and logged, and what a configuration allows to happen.

A record is named by its unit and its place in it: A0, A1, .... A position of a unit is the number of its records read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from model.changes.rules import ALL, Rule

OUT, LATE, QUEUE = "out", "late", "queue"
"""The destination that is always there, the one that comes and goes, and the dead-letter queue."""
CONSUMERS = (OUT, LATE, QUEUE)


class File(NamedTuple):
    """The pipeline file and the code it names."""

    unit: str = "A"
    late: str = ""
    """"": not in the file; "boundary": starts where the pipeline stands; "log": start-from: log."""
    logged: bool = False
    code: int = 0


class Source(NamedTuple):
    """The stored row of the source. ``position`` is an offset of the log when ``logged``, else one of the unit."""

    unit: str = "A"
    generation: int = 1
    position: int = 0
    logged: bool = False
    records: int = 0
    """Records read so far, of any unit; the offset at which a log begins."""


class Place(NamedTuple):
    """Where a unit was left."""

    unit: str
    generation: int
    position: int


class Entry(NamedTuple):
    """An offset of the log."""

    record: str = ""
    """Empty where a record was delivered without being logged."""
    unit: str = ""
    upto: int = 0
    """The unit's position behind the record."""
    present: bool = False


class CatchUp(NamedTuple):
    """What the late destination reads from the log before it joins the others."""

    generation: int
    position: int
    upto: int


class Share(NamedTuple):
    """A prepared delivery: what one consumer gets of a step."""

    consumer: str
    records: tuple[str, ...]
    state: str = "open"
    """open, written (published but not marked), done, void."""


class Refusal(NamedTuple):
    """A record that the destination refused at publishing, and the record in its dead letter."""

    record: str
    letter: str
    published: bool = False


class Step(NamedTuple):
    """The open step."""

    kind: str
    """data, catch-up or replay."""
    unit: str
    logged: bool
    generation: int
    start: int
    end: int
    consumers: tuple[str, ...]
    """Registered when it was planned."""
    reach: tuple[int, int] | None = None
    """The range of the unit that is to be logged while the step is staged."""
    letters: tuple[int, ...] = ()
    """Of a replay: the numbers of its dead letters."""
    lettered: tuple[str, ...] = ()
    """Of a catch-up: records that had a dead letter when it was planned."""
    failing: bool = False
    """It was cut before the record at which its source failed."""
    code: int | None = None
    """Prepared with this code; None while the step is planned."""
    shares: tuple[Share, ...] = ()
    staged: bool = True
    """The staging of a prepared step is there and whole."""
    refused: tuple[Refusal, ...] = ()

    @property
    def is_prepared(self) -> bool:
        """Whether its decision is made."""
        return self.code is not None


class Letter(NamedTuple):
    """A row of the dead-letter index."""

    record: str
    offset: int
    missed: str
    """The destination that has no copy, or "all"."""
    is_open: bool = True


class Published(NamedTuple):
    """What is at a destination: a row is a record and the kind of the step that brought it."""

    rows: tuple[tuple[str, str], ...] = ()
    hashes: frozenset[tuple[object, ...]] = frozenset()


class Run(NamedTuple):
    """The running process."""

    phase: str
    registered: bool = False


class State(NamedTuple):
    """Everything at one moment. The last block is bookkeeping of the checker, which the protocol never reads."""

    file: File
    budgets: tuple[int, ...]
    source: Source = Source()
    places: tuple[Place, ...] = ()
    highest: int = 1
    """The highest generation ever given."""
    log: tuple[Entry, ...] = ()
    log_position: int = 0
    """The position of the unit up to which it is logged."""
    consumers: frozenset[str] = frozenset({OUT})
    catch_up: CatchUp | None = None
    catch_ups: int = 0
    """Catch-ups ever begun."""
    offsets: tuple[tuple[str, int], ...] = ()
    """Consumers and the offset behind what they have handled."""
    step: Step | None = None
    letters: tuple[Letter, ...] = ()
    replays: int = 0
    replaying: bool = False
    run: Run | None = None
    status: str = ""
    acked: tuple[Place, ...] = ()
    published: tuple[Published, ...] = (Published(), Published(), Published())
    gone: frozenset[str] = frozenset()
    """Units whose data is gone."""

    due: frozenset[tuple[str, str]] = frozenset()
    """Destinations and the records they have to get."""
    dropped: frozenset[tuple[str, str]] = frozenset()
    """Destinations and the records that a decision filtered for them."""
    broken: str = ""
    """A violation that a transition itself found."""


_FIRST_FILE = File()
FAULTS = ("crash", "edit", "lose", "compact", "gap", "restart")
"""Budgets: crashes, edits, losses of staging, compactions, entries that an operator lost, restarts after a failure."""


@dataclass(frozen=True)
class Config:
    """One configuration: the rules that hold, the data, and what may happen how often."""

    rules: frozenset[Rule] = ALL
    units: Mapping[str, int] = field(default_factory=lambda: {"A": 3, "B": 2, "C": 2})
    """Records of each unit."""
    batch: int = 2
    sizes: bool = True
    """A step may end before its batch is full."""
    segment: int = 2
    """Entries of a segment of the log."""
    filtered: tuple[frozenset[str], ...] = (frozenset(), frozenset())
    """Records that the processors drop, per version of the code."""
    nacked: tuple[frozenset[str], ...] = (frozenset(), frozenset())
    """Records that a processor fails on, per version of the code."""
    refused: frozenset[str] = frozenset()
    """Records that the destination ``out`` refuses at publishing."""
    unreadable: Mapping[str, int] = field(default_factory=dict)
    """Units and the record at which reading them fails."""
    file: File = _FIRST_FILE
    edits: tuple[str, ...] = ()
    """The edits that may happen, in any order: see world.py."""
    crash_in: tuple[str, ...] = ("planned", "prepared", "none")
    """States of the open step in which a crash may happen."""
    budget: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Beginnings of violations that are not reported."""

    def has(self, rule: Rule) -> bool:
        """Whether the protocol follows a rule."""
        return rule in self.rules

    def initial(self) -> State:
        """Return the state before the first run."""
        source = Source(logged=self.file.logged)
        return State(self.file, tuple(self.budget.get(fault, 0) for fault in FAULTS), source)

    def records(self, unit: str, start: int, end: int) -> tuple[str, ...]:
        """Return the names of a unit's records."""
        return tuple(f"{unit}{i}" for i in range(start, end))


def published(state: State, consumer: str) -> Published:
    """Return what a consumer has."""
    return state.published[CONSUMERS.index(consumer)]


def with_published(state: State, consumer: str, value: Published) -> State:
    """Return the state with something else at a consumer."""
    values = list(state.published)
    values[CONSUMERS.index(consumer)] = value
    return state._replace(published=tuple(values))


def budget(state: State, fault: str) -> int:
    """Return how often a fault may still happen."""
    return state.budgets[FAULTS.index(fault)]


def spend(state: State, fault: str) -> State:
    """Return the state with one fault fewer to come."""
    values = list(state.budgets)
    values[FAULTS.index(fault)] -= 1
    return state._replace(budgets=tuple(values))
