"""Explore every state that a model can reach, breadth first, and report the shortest way to a violation.

A model says what may happen next; the explorer knows nothing about pipelines. What the protocol does and what happens
to it (faults, edits) are kept apart: faults are bounded by budgets inside the state, and without faults every run must
come to an end.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
Moves = list[tuple[str, S]]
"""Labels and the states they lead to."""


class Model(Protocol[S]):
    """What the explorer needs to know."""

    def initial(self) -> S:
        """Return the first state."""
        ...

    def steps(self, state: S, /) -> Moves[S]:
        """Return what the protocol itself can do next. A state without steps is final."""
        ...

    def faults(self, state: S, /) -> Moves[S]:
        """Return what can happen to the protocol: crashes, edits, losses."""
        ...

    def violation(self, state: S, final: bool, /) -> str | None:
        """Return which invariant the state breaks."""
        ...

    def outcome(self, state: S, /) -> str:
        """Return the name under which a final state is counted."""
        ...


@dataclass
class Result:
    """What one exploration found."""

    states: int = 0
    seconds: float = 0.0
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    complete: bool = True
    """False where a limit ended the exploration before every state was seen."""


class _Graph:
    """The states seen so far, by hash, each with the transition it was first reached by."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._parents = array("q")
        self._labels: list[str] = []
        self._from, self._to = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, state: Hashable, parent: int, label: str) -> tuple[int, bool]:
        """Return the state's number, and whether it is new."""
        known = self._numbers.setdefault(hash(state), len(self._parents))
        if known < len(self._parents):
            return known, False
        self._parents.append(parent)
        self._labels.append(label)
        return known, True

    def edge(self, start: int, end: int) -> None:
        """Record a transition without a fault."""
        self._from.append(start)
        self._to.append(end)

    def trace(self, number: int) -> list[str]:
        """Return the labels that lead to a state."""
        labels: list[str] = []
        while number > 0:
            labels.append(self._labels[number])
            number = self._parents[number]
        return labels[::-1]

    def states_on_cycles(self) -> int:
        """Count the states that transitions without faults can never leave (Kahn's algorithm)."""
        incoming = array("q", [0]) * len(self)
        following: list[list[int]] = [[] for _ in range(len(self))]
        for start, end in zip(self._from, self._to, strict=True):
            incoming[end] += 1
            following[start].append(end)
        free = [number for number in range(len(self)) if not incoming[number]]
        left = len(self)
        while free:
            left -= 1
            for end in following[free.pop()]:
                incoming[end] -= 1
                if not incoming[end]:
                    free.append(end)
        return left


def explore(model: Model[S], max_states: int = 2_000_000, max_seconds: float = 300.0) -> Result:
    """Explore the model until a violation is found, every state is seen or a limit is reached."""
    began, result, graph = time.monotonic(), Result(), _Graph()
    first = model.initial()
    queue: deque[tuple[int, S]] = deque([(graph.add(first, -1, "")[0], first)])

    def visit(parent: int, moves: Iterable[tuple[str, S]], is_fault: bool) -> None:
        for label, state in moves:
            number, is_new = graph.add(state, parent, label)
            if is_new:
                queue.append((number, state))
            if not is_fault:
                graph.edge(parent, number)

    while queue and result.complete and not result.violation:
        number, state = queue.popleft()
        steps = model.steps(state)
        if found := model.violation(state, not steps):
            result.violation, result.trace = found, graph.trace(number)
            break
        if not steps:
            result.outcomes[model.outcome(state)] += 1
        visit(number, steps, False)
        visit(number, model.faults(state), True)
        result.complete = len(graph) <= max_states and time.monotonic() - began <= max_seconds
    if result.complete and not result.violation and (cyclic := graph.states_on_cycles()):
        result.violation = f"a run without faults may never end: {cyclic} states on cycles"
    result.states, result.seconds = len(graph), time.monotonic() - began
    return result
