"""One owner, phase by phase. Every transition is one transaction, one effect outside the store, or one local step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.protocol.decisions import decide, holds, is_staged, records_of, staged
from model.protocol.preparing import measure, plan, planned, prepare, stage, void_later
from model.protocol.publishing import publish
from model.protocol.rules import Rule
from model.protocol.shared import Moves, fails, moved_to, threads_of, zombie_ends
from model.protocol.state import (
    DONE,
    ENDED_THREAD,
    PENDING,
    Config,
    Process,
    State,
    Step,
    owns,
    replaced,
    with_process,
    with_step,
)


def process_moves(config: Config, state: State, process: Process) -> Moves:
    """Return what a process may do next."""
    outside = ("publish", "ack") if config.has(Rule.TOKEN) else ("publish", "ack", "stage")
    if not owns(config, state, process) and process.phase not in outside:
        return zombie_ends(state, process)
    return _PHASES[process.phase](config, state, process)


# -- start --------------------------------------------------------------------------------------------------------


def _end_connections(config: Config, state: State, process: Process) -> Moves:
    def ended(other: Process) -> Process:
        if other is process or other.epoch >= process.epoch or not config.has(Rule.END_CONNECTIONS):
            return other
        threads = (ENDED_THREAD if one.does == "begin" else one for one in other.threads)
        return other._replace(threads=tuple(threads))

    after = state._replace(processes=tuple(map(ended, state.processes)), fence=process.epoch)
    if config.has(Rule.REACK_FIRST) and config.has(Rule.REACK):
        return [("end old connections", moved_to(after, process, "ack", local=(0, state.positions), acked=1))]
    return [("end old connections", moved_to(after, process, "scan"))]


def _scan(config: Config, state: State, process: Process) -> Moves:
    """Take up the first open step of the chain; only when there is none, read anew."""
    if not state.steps:
        if process.acked or not config.has(Rule.REACK):
            return [("scan", moved_to(state, process, "plan"))]
        return [("scan: re-ack", moved_to(state, process, "ack", local=(0, state.positions), acked=1))]
    step = min(state.steps, key=lambda one: one.number)
    if not step.prepared:
        return [("scan", moved_to(state, process, "stage", step=step))]
    # a destination is asked what it holds before staging is looked for
    is_held = config.has(Rule.HOLDS_FIRST) and all(
        part == DONE or holds(config, state, step, i) for i, part in enumerate(step.progress)
    )
    if is_held or is_staged(config, state, step):
        return [("scan", moved_to(state, process, "publish", step=step, threads=threads_of(step)))]
    return [("scan", moved_to(state, process, "rebuild", step=step))]


def _rebuild(config: Config, state: State, process: Process) -> Moves:
    """Stage a prepared step again; what it gives must be what was prepared."""
    step = process.step
    assert step is not None
    if not config.has(Rule.NEVER_ANEW) and not _has_trace(config, state, step):
        return _plan_anew(state, process, step)
    ledger = staged(config, state, step)
    if ledger is None:
        return [("range gone", fails(state, process, "operator: range gone under a prepared step"))]
    decision = decide(config, ledger)
    if decision != step.decision and config.has(Rule.DIGEST):
        return [("digest mismatch", fails(state, process, "operator: rebuilt staging differs"))]
    token = (process.epoch, step.number)
    again = step._replace(token=token, decision=decision)
    if decision != step.decision:
        parts = zip(step.progress, decision, strict=True)
        again = again._replace(progress=tuple(DONE if part == DONE or not rows else PENDING for part, rows in parts))
    after = with_step(state, again)._replace(staging=state.staging | {(token, ledger)})
    return [("rebuild staging", moved_to(after, process, "publish", step=again, threads=threads_of(again)))]


def _has_trace(config: Config, state: State, step: Step) -> bool:
    """Return whether anything of a step is published."""
    for part, rows in zip(step.progress, step.decision, strict=True):
        if part != PENDING and rows and not (isinstance(part, tuple) and set(part) == {PENDING}):
            return True
    for place, (kind, held) in enumerate(zip(config.kinds, state.consumers, strict=True)):
        if kind == "file" and len(held) > step.base[place]:
            return True
        if kind in ("pg", "folder"):
            names = [pair[0] if kind == "pg" else pair[0][1] for pair in (held[0] if kind == "pg" else held)]
            if any(name[1] == step.ranges and name[2] == place for name in names):
                return True
    return False


def _plan_anew(state: State, process: Process, step: Step) -> Moves:
    anew = Step(step.number, False, step.ranges)
    records = records_of(state, step.ranges)
    after = with_step(state, anew)._replace(
        window=step.window,
        nacks=state.nacks[: len(state.nacks) - len(records)],
        outcomes=tuple(pair for pair in state.outcomes if pair[0] not in records),
    )
    return [("staging gone, nothing published: planned anew", moved_to(after, process, "stage", step=anew))]


# -- done, ack, next ----------------------------------------------------------------------------------------------


def _done(config: Config, state: State, process: Process) -> Moves:
    step = process.step
    assert step is not None
    if not owns(config, state, process):
        return zombie_ends(state, process)
    ends = tuple(end for _, end in step.ranges)
    if config.once:
        return [("published", moved_to(state, process, "ack", local=(0, ends), threads=()))]
    after = state._replace(
        steps=tuple(one for one in state.steps if one.number != step.number),
        positions=ends,
        staging=frozenset(one for one in state.staging if one[0][1] != step.number),
    )
    return [(f"done {step.number}", moved_to(after, process, "ack", local=(0, ends), threads=()))]


def _ack(config: Config, state: State, process: Process) -> Moves:
    """Ack one source; a process that lost the lease can do this as well."""
    place, values = process.local
    known = state.acked[place]
    # a source ignores a lower ack, and one of another generation
    value = max(values[place], known) if config.has(Rule.ACK_MONOTONE) else values[place]
    broken = "source ack went backwards" if value < known else ""
    if process.epoch != state.epoch and state.generation and config.has(Rule.ACK_GENERATION):
        value, broken = known, ""
    after = state._replace(acked=replaced(state.acked, place, value), broken=broken)
    if place + 1 < len(values):
        return [("ack", moved_to(after, process, "ack", local=(place + 1, values)))]
    if not owns(config, state, process):
        return [("zombie acks", with_process(after, process, None))]
    return [("ack", moved_to(after, process, "next", local=None, step=None))]


def _next(config: Config, state: State, process: Process) -> Moves:
    if process.failure:
        return [("next", moved_to(state, process, "fail"))]
    if not process.ahead:
        return [("next", moved_to(state, process, "scan" if state.steps else "plan", acked=1))]
    number, ledger = process.ahead[0][:2]
    step = next((one for one in state.steps if one.number == number), None)
    if step is None:
        return [("next", with_process(state, process, None))]
    seen = process.ahead[0][2] if ledger and not config.has(Rule.RESOLVE_IN_ORDER) else None
    changes: dict[str, Any] = {"seen_window": seen, "ahead": process.ahead[1:], "step": step, "ledger": ledger}
    moves = [("next: prepare ahead", moved_to(state, process, "measure" if ledger else "stage", **changes))]
    if process.stopping:
        after = state._replace(steps=tuple(one for one in state.steps if one.number < number))
        moves.append(("void ahead", with_process(after, process, process._replace(ahead=()))))
    return moves


def _fail(config: Config, state: State, process: Process) -> Moves:
    assert process.failure is not None
    return [(f"run fails: {process.failure}", fails(state, process, process.failure))]


def _transient(config: Config, state: State, process: Process) -> Moves:
    """End the run after a transient error; steps planned ahead are void."""
    step = process.step
    assert step is not None
    if process.epoch != state.epoch:
        return zombie_ends(state, process)
    keeps_all = not config.has(Rule.FAILURE_VOIDS)
    kept = (one for one in state.steps if one.prepared or one.number == step.number or keeps_all)
    return [("stop transient", with_process(state._replace(steps=tuple(kept)), process, None))]


def _publish(config: Config, state: State, process: Process) -> Moves:
    return [*_look_ahead(config, state, process), *publish(config, state, process)]


# -- steps ahead --------------------------------------------------------------------------------------------------


def _look_ahead(config: Config, state: State, process: Process) -> Moves:
    """Plan and stage the next step while this one publishes."""
    step = process.step
    assert step is not None
    is_busy = process.failure or process.stopping or config.once
    if process.epoch != state.epoch or is_busy or config.in_flight < 2 or not step.prepared:
        return []
    moves: Moves = []
    ahead = process.ahead
    if len(ahead) < config.in_flight - 1 and all(one[1] is not None for one in ahead):
        newest = max(state.steps, key=lambda one: one.number) if state.steps else None
        start = tuple(end for _, end in newest.ranges) if newest else state.positions
        known = ahead[-1][0] if ahead else step.number
        if start != config.records and newest is not None and newest.number == known:
            after, following = planned(config, state, start)
            label = f"plan ahead {following.number}"
            planned_ahead = process._replace(ahead=(*ahead, (following.number, None)))
            moves.append((label, with_process(after, process, planned_ahead)))
    if ahead and ahead[-1][1] is None:
        following = next(one for one in state.steps if one.number == ahead[-1][0])
        if (ledger := staged(config, state, following)) is not None:
            after = state._replace(staging=state.staging | {((process.epoch, following.number), ledger)})
            staged_ahead = process._replace(ahead=(*ahead[:-1], (following.number, ledger, state.window)))
            moves.append((f"stage ahead {following.number}", with_process(after, process, staged_ahead)))
    return moves


_PHASES: dict[str, Callable[[Config, State, Process], Moves]] = {
    "end connections": _end_connections,
    "scan": _scan,
    "rebuild": _rebuild,
    "plan": plan,
    "stage": stage,
    "measure": measure,
    "prepare": prepare,
    "replan": prepare,
    "void later": void_later,
    "publish": _publish,
    "done": _done,
    "ack": _ack,
    "next": _next,
    "fail": _fail,
    "transient": _transient,
}


def start(state: State) -> Moves:
    """Start a process where none owns the pipeline and no status says not to."""
    process = Process(state.epoch + 1, "end connections")
    return [("START", state._replace(epoch=state.epoch + 1, processes=(*state.processes, process)))]
