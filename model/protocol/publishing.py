"""The deliveries of a prepared step, each in a thread of its own: dead letters first, then the destinations."""

from __future__ import annotations

from typing import Any

from model.protocol import children, named
from model.protocol.decisions import found, holds, is_published, is_staged, staged_decision, whole_hash
from model.protocol.rules import Rule, Variant
from model.protocol.shared import Moves, Place, fails, mark, step_of, transient, turn, zombie_ends
from model.protocol.state import (
    DONE,
    HOLE,
    PENDING,
    SPLIT,
    TORN,
    WRITTEN,
    Config,
    Process,
    State,
    Step,
    Thread,
    put,
    replaced,
    with_consumer,
    with_process,
)


def publish(config: Config, state: State, process: Process) -> Moves:
    """Return what every open thread may do next; where none is open, the step goes on to done."""
    step = step_of(process)
    moves: Moves = []
    is_live = False
    for consumer in range(len(config.kinds)):
        if not _may_start(config, step, consumer):
            continue
        thread, place = process.threads[consumer], Place(config, state, process, consumer)
        if place.is_queue and thread.does == "ended" and any(not letter.done for letter in step.letters):
            is_live = True
            moves.append(children.publish_letter(place, thread))
        elif thread.does not in ("ended", "zombie"):
            is_live = True
            moves += _thread_moves(place, thread)
    if is_live:
        return moves
    if is_published(step):
        return [*moves, ("all published", with_process(state, process, process._replace(phase="done")))]
    return moves if process.epoch == state.epoch else [*moves, *zombie_ends(state, process)]


def _may_start(config: Config, step: Step, consumer: int) -> bool:
    last = len(config.kinds) - 1
    letters = step.progress[last]
    # dead letters first: no destination before the step's own are published
    return consumer == last or letters == DONE or PENDING not in letters or not config.has(Rule.LETTERS_FIRST)


def _thread_moves(place: Place, thread: Thread) -> Moves:
    if thread.does in _STEPS:
        return _STEPS[thread.does](place, thread)
    if place.config.names and not place.is_queue and thread.does in named.STEPS:
        return named.STEPS[thread.does](place, thread)
    return children.thread_moves(place, thread)


# -- where a delivery begins --------------------------------------------------------------------------------------


def _go(place: Place, thread: Thread) -> Moves:
    config, state, step, consumer = place.config, place.state, step_of(place.process), place.consumer
    part, kind, held = step.progress[consumer], place.kind, place.held
    if isinstance(part, tuple) and config.names:
        return [(f"resume {consumer}", turn(place, named.resumed(place)))]
    if isinstance(part, tuple):
        claims = kind != "direct" and config.has(Rule.CLAIM_PARENT) and len(step.decision[consumer]) > 1
        return [(f"resume {consumer}", turn(place, Thread("claim parent" if claims else "children")))]
    if not is_staged(config, state, step):
        if config.has(Rule.HOLDS_FIRST) and holds(config, state, step, consumer):
            return [(f"{consumer} holds it", turn(place, Thread("mark")))]
        return [("staging missing", transient(state, place.process))]
    if kind == "file":
        return _open_file(place, step, len(held))
    label = f"resume {consumer}" if kind == "direct" else f"begin {consumer}"
    return [(label, turn(place, Thread("children" if kind == "direct" else "begin")))]


def _open_file(place: Place, step: Step, length: int) -> Moves:
    config, consumer = place.config, place.consumer
    base = step.base[consumer]
    is_ours = base <= length <= base + len(step.decision[consumer])
    if config.has(Rule.NO_APPEND) and not is_ours and not (config.once and config.has(Rule.ONCE_BASE)):
        return [("foreign growth", fails(place.state, place.process, "operator: foreign growth"))]
    return [(f"open staging for {consumer}", turn(place, Thread("write")))]


# -- one ordered file ---------------------------------------------------------------------------------------------


def _write(place: Place, thread: Thread) -> Moves:
    """Write half a record, or the rest of it, at its place behind the base."""
    config, step, consumer, held = place.config, step_of(place.process), place.consumer, place.held
    at = step.base[consumer] + thread.at
    if not config.has(Rule.NO_APPEND):
        at = len(held) - 1 if thread.half else len(held)
    rows = staged_decision(config, place.state, step)[consumer][thread.at : thread.at + 1]
    record = rows[0] if rows else HOLE
    filled = held + (HOLE,) * (at + 1 - len(held))
    old = filled[at]
    is_foreign = old > 0 and old != record and config.has(Rule.NO_APPEND)
    bytes_there = record if thread.half or old == record else TORN
    after = with_consumer(place.state, consumer, replaced(filled, at, bytes_there))
    after = after._replace(broken="overwrote another record's bytes" if is_foreign else "")
    label = f"write {record} at {at}" + ("" if thread.half else " half")
    return [(label, turn(place, _after_write(place, thread, len(step.decision[consumer])), after))]


def _after_write(place: Place, thread: Thread, total: int) -> Thread:
    if not thread.half:
        return Thread("write", thread.at, 1)
    if thread.at + 1 < total:
        return Thread("write", thread.at + 1)
    # what was published is synced before the step is done
    needs_sync = place.config.allowed("power") and place.config.has(Rule.FSYNC)
    return Thread("fsync" if needs_sync else "mark")


def _fsync(place: Place, thread: Thread) -> Moves:
    durable = replaced(place.state.durable, place.consumer, place.held)
    return [(f"fsync {place.consumer}", turn(place, Thread("mark"), place.state._replace(durable=durable)))]


# -- all or nothing -----------------------------------------------------------------------------------------------


def _begin(place: Place, thread: Thread) -> Moves:
    """Publish a delivery whole under its hash, or fail."""
    config, state, step, consumer = place.config, place.state, step_of(place.process), place.consumer
    rows = staged_decision(config, state, step)[consumer]
    name = whole_hash(config, step, consumer)
    known = found(config, state, step, consumer, name)
    if known == SPLIT:
        return [(f"{consumer} is split", turn(place, _split(place)))]
    content = _content_with(place, step, name, known, rows)
    after = with_consumer(state, consumer, content)
    if config.variants & {Variant.RENAME} and place.kind == "folder" and content is not place.held:
        after = after._replace(staging=frozenset(one for one in after.staging if one[0] != step.token))
    if config.allowed("power") and (place.kind == "pg" or config.has(Rule.FSYNC)):
        after = after._replace(durable=replaced(after.durable, consumer, content))
    moves = [(f"publish {consumer} {rows}", turn(place, Thread("mark"), after))]
    return moves + _errors(place, after) if place.has_error else moves


def _split(place: Place) -> Thread:
    return named.whole_fails(place) if place.config.names else Thread("split")


def _content_with(place: Place, step: Step, name: Any, known: Any, rows: tuple[int, ...]) -> Any:
    held = place.held
    if not place.config.has(Rule.HASH) and place.kind == "pg":
        return (held[0], held[1] + rows)
    if known is not None:
        return held
    return (put(held[0], name, WRITTEN), held[1] + rows) if place.kind == "pg" else put(held, (step.number, name), rows)


def _errors(place: Place, written: State) -> Moves:
    failed, consumer = place.after_error, place.consumer
    moves = [(f"outage {consumer}", transient(failed, place.process))]
    if place.is_queue:
        return [*moves, ("dead-letter write fails", transient(failed, place.process))]
    moves.append((f"bulk error {consumer}, nothing written", turn(place, _split(place), failed)))
    if place.config.names:
        moves += named.whole_refusals(place)
    if Variant.NEVER_WRITTEN not in place.config.variants:
        after = failed._replace(consumers=written.consumers)
        moves.append((f"bulk error {consumer}, written", turn(place, _split(place), after)))
    return moves


def _mark_done(place: Place, thread: Thread) -> Moves:
    step = step_of(place.process)
    done = step._replace(progress=replaced(step.progress, place.consumer, DONE))
    return [(f"mark {place.consumer} done", mark(place, done, Thread("ended")))]


_STEPS = {"go": _go, "write": _write, "fsync": _fsync, "begin": _begin, "mark": _mark_done}
