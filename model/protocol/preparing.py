"""Lines 1 to 5: plan and stage a step, resolve its nacks and prepare it."""

from __future__ import annotations

from typing import Any

from model.protocol.decisions import cut_before, decide, resolve, staged, token_of
from model.protocol.rules import Rule, Variant
from model.protocol.shared import Moves, fails, moved_to, threads_of
from model.protocol.state import (
    DONE,
    ENDED,
    HOLE,
    PENDING,
    TORN,
    Config,
    Ledger,
    Process,
    State,
    Step,
    put,
    replaced,
    with_outcomes,
    with_process,
    with_step,
)

# -- plan and stage -----------------------------------------------------------------------------------------------


def plan(config: Config, state: State, process: Process) -> Moves:
    """Plan the next step, stop, or find the sources drained."""
    if process.stopping:
        return [("stopped", with_process(state, process, None)._replace(status="stopped"))]
    if state.positions == config.records:
        return [("drained", with_process(state, process, None)._replace(status="idle"))]
    after, step = planned(config, state, state.positions)
    label = f"plan {step.number} {step.ranges}"
    return [(label, moved_to(after, process, "stage", step=step, ledger=None))]


def planned(config: Config, state: State, start: tuple[int, ...]) -> tuple[State, Step]:
    """Return the state with one more step, which begins at ``start``."""
    ends = zip(start, config.records, strict=True)
    step = Step(state.next_number, False, tuple((at, min(at + config.batch, total)) for at, total in ends))
    return state._replace(steps=(*state.steps, step), next_number=state.next_number + 1), step


def stage(config: Config, state: State, process: Process) -> Moves:
    """Read the ranges of a planned step and stage what comes of them."""
    step = process.step
    assert step is not None
    ledger = staged(config, state, step)
    if ledger is None:
        return [("range gone", fails(state, process, "operator: range gone"))]
    is_owner = process.epoch == state.epoch
    if is_owner and any(start < end and start < state.acked[i] for i, (start, end) in enumerate(step.ranges)):
        return [("x", state._replace(broken="owner must read records it already acked"))]
    token = token_of(config, process, step)
    staging = frozenset(one for one in state.staging if one[0] != token) | {(token, ledger)}
    after = state._replace(staging=staging)
    if not config.has(Rule.PREPARE):
        return _publish_unprepared(config, after, process, step, ledger)
    return [(f"stage {step.number}", moved_to(after, process, "measure", ledger=ledger))]


def _publish_unprepared(config: Config, state: State, process: Process, step: Step, ledger: Ledger) -> Moves:
    decision = decide(config, ledger)
    made = step._replace(
        prepared=True,
        token=token_of(config, process, step),
        decision=decision,
        progress=tuple(PENDING if rows else DONE for rows in decision),
        base=_ends_of_files(config, state),
    )
    after = with_outcomes(state, ledger)
    threads = threads_of(made)
    return [
        ("stage, publish unprepared", moved_to(after, process, "publish", ledger=ledger, step=made, threads=threads))
    ]


def _ends_of_files(config: Config, state: State) -> tuple[int, ...]:
    pairs = zip(config.kinds, state.consumers, strict=True)
    return tuple(len(held) if kind == "file" else 0 for kind, held in pairs)


# -- resolve and prepare ------------------------------------------------------------------------------------------


def measure(config: Config, state: State, process: Process) -> Moves:
    """Look at where the files end: the bases of the step."""
    after = state
    for place, (kind, held) in enumerate(zip(config.kinds, state.consumers, strict=True)):
        if kind == "file" and config.once:
            consumers = replaced(after.consumers, place, _closed_file(config, state, place, held))
            after = after._replace(consumers=consumers)
    return [("measure", moved_to(after, process, "prepare", local=_ends_of_files(config, after)))]


def _closed_file(config: Config, state: State, place: int, held: tuple[int, ...]) -> tuple[int, ...]:
    if config.has(Rule.ONCE_BASE):
        # the previous base plus its length, so that a late write can't land in later bytes
        bases = dict(state.decisions).get("base", (0,) * 9)
        held = held + (HOLE,) * (bases[place] - len(held))
        return tuple(record if record > 0 else ENDED for record in held)
    return (*held[:-1], ENDED) if held and held[-1] == TORN else held


def prepare(config: Config, state: State, process: Process) -> Moves:
    """Resolve the nacks of a staged step and record what is decided."""
    step, ledger = process.step, process.ledger
    assert step is not None and ledger is not None
    before = state.window if process.seen_window is None else process.seen_window
    window, exceeding, entries = resolve(config, before, ledger)
    if exceeding is not None:
        return _cut(config, state, process, step, exceeding)
    decision = decide(config, ledger)
    made = Step(
        step.number,
        True,
        step.ranges,
        token_of(config, process, step),
        decision,
        _progress(config, decision),
        process.local,
        state.window,
    )
    after = with_step(_decided(config, state, process, step, decision), made)
    after = with_outcomes(after._replace(window=window, nacks=state.nacks + tuple(entries)), ledger)
    if config.once:
        # at-most-once: prepare also moves positions and ends the step
        steps = tuple(one for one in after.steps if one.number != step.number)
        after = after._replace(steps=steps, positions=tuple(end for _, end in step.ranges))
    threads = threads_of(made)
    moved = moved_to(after, process, "publish", step=made, threads=threads, ledger=None, local=None)
    return [(f"prepare {step.number} {decision}", moved)]


def _progress(config: Config, decision: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
    def part(kind: str, rows: tuple[int, ...]) -> Any:
        if not rows:
            return DONE
        return (PENDING,) * len(rows) if kind == "direct" else PENDING

    return tuple(part(kind, rows) for kind, rows in zip(config.kinds, decision, strict=True))


def _decided(
    config: Config, state: State, process: Process, step: Step, decision: tuple[tuple[int, ...], ...]
) -> State:
    """Note the decision; from here it never changes."""
    key = (state.generation, step.ranges)
    known = dict(state.decisions).get(key)
    is_changed = known not in (None, decision) and Variant.MAY_REDECIDE not in config.variants
    decisions = put(state.decisions, key, decision)
    if config.once:
        ends = (base + len(rows) for base, rows in zip(process.local, decision, strict=True))
        decisions = put(decisions, "base", tuple(ends))
    return state._replace(decisions=decisions, broken="a prepared decision changed" if is_changed else "")


def _cut(config: Config, state: State, process: Process, step: Step, record: int) -> Moves:
    """Void the step and, in the same transaction, plan its successor with ranges cut before the record."""
    ranges, why = cut_before(step.ranges, record), f"threshold at {record % 100}"
    is_first = process.phase == "prepare"
    later = tuple(one for one in state.steps if one.number > step.number)
    later = later if not config.has(Rule.CUT_VOIDS_LATER) else ()
    if not config.has(Rule.CUT) and is_first:
        return [("void, successor not yet planned", moved_to(state._replace(steps=later), process, "replan", ahead=()))]
    if not config.has(Rule.CUT_VOID_FIRST):
        return _plan_first(state, process, ranges, why, is_first)
    if not any(start < end for start, end in ranges):
        return [
            (f"cut before {record}: nothing left", moved_to(state._replace(steps=later), process, "fail", failure=why))
        ]
    successor = Step(state.next_number, False, ranges)
    after = state._replace(steps=(*later, successor), next_number=state.next_number + 1)
    changes: dict[str, Any] = {"step": successor, "ledger": None, "ahead": (), "failure": why, "local": None}
    if not later:
        return [(f"cut before {record}", moved_to(after, process, "stage", **changes))]
    changes["local"] = tuple(one.number for one in later)
    return [(f"cut before {record}", moved_to(after, process, "void later", **changes))]


def _plan_first(state: State, process: Process, ranges: Any, why: str, is_first: bool) -> Moves:
    if is_first:
        after = state._replace(
            steps=(*state.steps, Step(state.next_number, False, ranges)), next_number=state.next_number + 1
        )
        return [("successor planned, not yet void", moved_to(after, process, "replan"))]
    after, last = state._replace(steps=state.steps[-1:]), state.steps[-1]
    changes: dict[str, Any] = {"step": last, "ledger": None, "ahead": (), "failure": why, "local": None}
    return [("void late", moved_to(after, process, "stage", **changes))]


def void_later(config: Config, state: State, process: Process) -> Moves:
    """Void the steps behind a cut one; only without cut-voids-later."""
    steps = tuple(one for one in state.steps if one.number not in process.local)
    return [("void later steps", moved_to(state._replace(steps=steps), process, "stage", local=None))]
