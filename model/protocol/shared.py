"""What publishing, children and the phases of a process have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from model.protocol.state import (
    DONE,
    ENDED_THREAD,
    GO,
    ZOMBIE,
    Config,
    Process,
    State,
    Step,
    Thread,
    budget,
    owns,
    replaced,
    spent,
    with_process,
    with_step,
)

Moves = list[tuple[str, State]]


class Place:
    """One delivery of the step that a process publishes."""

    def __init__(self, config: Config, state: State, process: Process, consumer: int) -> None:
        self.config, self.state, self.process, self.consumer = config, state, process, consumer
        self.kind, self.held = config.kinds[consumer], state.consumers[consumer]
        self.is_queue = consumer == len(config.kinds) - 1

    @cached_property
    def has_error(self) -> bool:
        """Whether an error may happen."""
        return budget(self.state, "error") > 0

    @cached_property
    def after_error(self) -> State:
        """The state with one error fewer to come."""
        return self.state._replace(budgets=spent(self.state, "error"))

    @cached_property
    def owns(self) -> bool:
        """Whether the store accepts the process's transactions."""
        return owns(self.config, self.state, self.process)


def moved_to(state: State, process: Process, phase: str, **changes: Any) -> State:
    """Return the state after a process went to its next phase."""
    return with_process(state, process, process._replace(phase=phase, **changes))


def threads_of(step: Step) -> tuple[Thread, ...]:
    """Return a thread per delivery that is open."""
    return tuple(ENDED_THREAD if part == DONE else GO for part in step.progress)


def step_of(process: Process) -> Step:
    """Return the step that a process is at."""
    assert process.step is not None
    return process.step


def turn(place: Place, thread: Thread, state: State | None = None, step: Step | None = None) -> State:
    """Return the state after a thread of a process went on."""
    process = place.process
    threads = replaced(process.threads, place.consumer, thread)
    new = process._replace(step=step or process.step, threads=threads)
    return with_process(state or place.state, process, new)


def mark(place: Place, step: Step, thread: Thread, extra: Callable[[State], State] = lambda state: state) -> State:
    """Return the state after a transaction about the step; that of a zombie fails and ends its thread."""
    if not place.owns:
        return turn(place, ZOMBIE)
    state = place.state if place.config.once else with_step(place.state, step)
    return turn(place, thread, extra(state), step)


def transient(state: State, process: Process) -> State:
    """Return the state after a transient error, which stops the run."""
    return with_process(state, process, process._replace(phase="transient"))


def fails(state: State, process: Process, why: str) -> State:
    """Return the state after a process ended with a fatal error."""
    after = with_process(state, process, None)
    return after._replace(status=f"fatal:{why}") if process.epoch == state.epoch else after


def zombie_ends(state: State, process: Process) -> Moves:
    """The store refuses the transaction of a process that lost the lease."""
    return [("zombie ends", with_process(state, process, None))]
