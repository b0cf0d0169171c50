"""What is stored, staged and published, and the configurations.

A record is a number: generation, source and place, one digit each. So 11 is the first record of the second source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from model.protocol.rules import ALL, Rule, Variant

FAULTS = ("crash", "freeze", "flip", "lose", "error", "gone", "stop", "restart", "power", "rewind")
TORN, ENDED, HOLE = -3, -5, 0
"""What a file may hold in place of a record: half of one, the line end behind half of one, nothing. (Not -1 and -2,
which have the same hash.)"""
DONE, PENDING, NACKED = "done", "todo", "nacked"
SPLIT, WRITTEN = "split", "written"
Ledger = tuple[tuple[int, str], ...]
"""Records and their verdicts."""
Ranges = tuple[tuple[int, int], ...]
Assoc = tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class Config:
    """One configuration."""

    records: tuple[int, ...] = (2, 2)
    """Records of each source."""
    batch: int = 2
    verdicts: str = ""
    """Per record: d deliver, f filter, n nack; a, b or ab: nacked by these destinations. Empty: all are delivered."""
    flipped: str = ""
    """The verdicts after the fault "flip"."""
    destinations: tuple[str, ...] = ("pg",)
    """Kinds: pg, file, folder, direct."""
    queue: str = "pg"
    """The kind of the dead-letter queue."""
    window: int = 0
    threshold: int = 0
    strategy: str = "exactly-once"
    in_flight: int = 1
    names: bool = False
    """Destinations name all the records that they refuse, and take the others of a delivery in one go."""
    without: frozenset[Rule] = frozenset()
    variants: frozenset[Variant] = frozenset()
    budget: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def rules(self) -> frozenset[Rule]:
        """The rules that hold."""
        return ALL - self.without

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of all consumers; the queue is the last one."""
        return (*self.destinations, self.queue)

    @cached_property
    def once(self) -> bool:
        """Whether the strategy is at-most-once."""
        return self.strategy == "at-most-once"

    @cached_property
    def exactly(self) -> bool:
        """Whether the strategy is exactly-once."""
        return self.strategy == "exactly-once"

    @cached_property
    def verdict(self) -> tuple[dict[int, str], dict[int, str]]:
        """The verdict of every record, before and after the flip."""
        names = [source * 10 + i for source, count in enumerate(self.records) for i in range(1, count + 1)]
        first = self.verdicts.split() or ["d"] * len(names)
        second = self.flipped.split() or first
        return dict(zip(names, first, strict=True)), dict(zip(names, second, strict=True))

    def has(self, rule: Rule) -> bool:
        """Whether a rule holds."""
        return rule in self.rules

    def allowed(self, fault: str) -> int:
        """How often a fault may happen."""
        return self.budget.get(fault, 0)


class Letter(NamedTuple):
    """The dead letters of records that were rejected at publishing together: one delivery."""

    records: tuple[int, ...]
    name: tuple[Any, ...]
    base: int
    """Where they begin in a queue that is a file."""
    done: bool


class Step(NamedTuple):
    """A step of the chain that is neither done nor void."""

    number: int
    prepared: bool
    ranges: Ranges
    token: Any = None
    decision: tuple[tuple[int, ...], ...] = ()
    """The records of each consumer."""
    progress: tuple[Any, ...] = ()
    """Per consumer: done, todo, or that of each of its children; with ``names``: todo and what is still to be sent."""
    base: tuple[int, ...] = ()
    """Where each file ended when the step was prepared."""
    window: tuple[int, ...] = ()
    """The nack window before it."""
    letters: tuple[Letter, ...] = ()


class Thread(NamedTuple):
    """What publishes one delivery."""

    does: str
    at: int = 0
    half: int = 0
    group: tuple[int, ...] = ()
    """With ``names``: the places of the child that failed, ..."""
    refused: tuple[int, ...] = ()
    """... those of its records that are refused, ..."""
    delivered: tuple[int, ...] = ()
    """... and those that turned out to be delivered."""


GO, ENDED_THREAD, ZOMBIE = Thread("go"), Thread("ended"), Thread("zombie")


class Process(NamedTuple):
    """A process that owns the pipeline, or that did and was frozen."""

    epoch: int
    phase: str
    step: Step | None = None
    ledger: Ledger | None = None
    threads: tuple[Thread, ...] = ()
    ahead: tuple[tuple[Any, ...], ...] = ()
    """Numbers of steps planned ahead, each with its ledger once it is staged, and the window it saw."""
    failure: str | None = None
    stopping: int = 0
    local: Any = None
    acked: int = 0
    seen_window: Any = None
    """Only without resolve-in-order."""


class State(NamedTuple):
    """Everything at one moment. The last block is bookkeeping of the checker, which the protocol never reads."""

    budgets: tuple[int, ...]
    version: int
    """Of the verdicts."""
    generation: int
    acked: tuple[int, ...]
    gone: int
    epoch: int
    positions: tuple[int, ...]
    next_number: int
    steps: tuple[Step, ...]
    window: tuple[int, ...]
    status: str | None
    staging: frozenset[tuple[Any, Ledger]]
    consumers: tuple[Any, ...]
    """What each consumer holds: pg (hashes, rows), folder by step and hash, file and direct a sequence."""
    durable: Any
    """What a power cut leaves of it."""
    processes: tuple[Process, ...]

    outcomes: Assoc
    """The verdict that was decided for each record."""
    nacks: tuple[int, ...]
    """Every entry of the window so far."""
    decisions: Assoc
    broken: str = ""
    fence: int = 0
    """The epoch of the last owner that ended older connections: a crash before it differs from one after it."""


def initial(config: Config) -> State:
    """Return the state before the first run."""
    empty = {"file": (), "folder": (), "direct": (), "pg": ((), ())}
    consumers = tuple(empty[kind] for kind in config.kinds)
    zero = (0,) * len(config.records)
    budgets = tuple(config.allowed(fault) for fault in FAULTS)
    durable = consumers if config.allowed("power") else None
    return State(
        budgets, 0, 0, zero, 0, 0, zero, 1, (), (), None, frozenset(), consumers, durable, (), (), (), (),
    )  # fmt: skip


def budget(state: State, fault: str) -> int:
    """Return how often a fault may still happen."""
    return state.budgets[FAULTS.index(fault)]


def spent(state: State, fault: str) -> tuple[int, ...]:
    """Return the budgets after one more fault."""
    place = FAULTS.index(fault)
    return replaced(state.budgets, place, state.budgets[place] - 1)


def replaced(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    """Return the values with another one in its place."""
    return (*values[:place], value, *values[place + 1 :])


def put(pairs: Assoc, key: Any, value: Any) -> Assoc:
    """Return the pairs with one added or replaced, in an order that does not depend on history."""
    kept = [pair for pair in pairs if pair[0] != key]
    return tuple(sorted([*kept, (key, value)], key=lambda pair: repr(pair[0])))


def get(pairs: Assoc, key: Any) -> Any:
    """Return the value of a key, or None."""
    for name, value in pairs:
        if name == key:
            return value
    return None


def with_outcomes(state: State, pairs: Iterable[tuple[int, str]]) -> State:
    """Return the state with decided verdicts noted."""
    return state._replace(outcomes=tuple(sorted((dict(state.outcomes) | dict(pairs)).items())))


def with_step(state: State, step: Step) -> State:
    """Return the state with a step replaced by number."""
    return state._replace(steps=tuple(step if one.number == step.number else one for one in state.steps))


def with_process(state: State, old: Process, new: Process | None) -> State:
    """Return the state with a process replaced, or ended."""
    changed = (new if one is old else one for one in state.processes)
    return state._replace(processes=tuple(one for one in changed if one is not None))


def with_consumer(state: State, place: int, content: Any) -> State:
    """Return the state with something else at a consumer."""
    return state._replace(consumers=replaced(state.consumers, place, content))


def owner(state: State) -> Process | None:
    """Return the process that holds the lease."""
    return next((process for process in state.processes if process.epoch == state.epoch), None)


def owns(config: Config, state: State, process: Process) -> bool:
    """Return whether the store accepts a process's transactions."""
    return process.epoch == state.epoch or not config.has(Rule.EPOCH)


def content_of(kind: str, held: Any) -> list[int]:
    """Return what a consumer holds, in order."""
    if kind == "pg":
        return list(held[1])
    if kind != "folder":
        return list(held)
    parts = sorted(held, key=lambda part: (part[0][0], part[0][1][3], part[0][1][4]))
    return [record for _, rows in parts if isinstance(rows, tuple) for record in rows]
