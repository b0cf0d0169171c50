"""Split deliveries: children of one record, claims, rejections and their dead letters."""

from __future__ import annotations

from typing import Any

from model.protocol.decisions import delivery_hash, found, records_of, whole_hash, window_with_nack
from model.protocol.rules import Rule
from model.protocol.shared import Moves, Place, fails, mark, step_of, transient, turn
from model.protocol.state import (
    DONE,
    HOLE,
    NACKED,
    PENDING,
    SPLIT,
    TORN,
    WRITTEN,
    ZOMBIE,
    Letter,
    State,
    Step,
    Thread,
    get,
    put,
    replaced,
    with_consumer,
    with_outcomes,
)

LETTERS = 1000
"""Where the numbers of dead letters begin that are found at publishing."""


def thread_moves(place: Place, thread: Thread) -> Moves:
    """Return what the thread of a split delivery may do next."""
    return _STEPS[thread.does](place, thread)


def _name(place: Place, child: int) -> tuple[Any, ...]:
    return delivery_hash(place.config, step_of(place.process), place.consumer, child, 1)


def stored(place: Place, name: Any, value: Any) -> Any:
    """Return what a destination holds with a mark under a hash."""
    if place.kind == "pg":
        return (put(place.held[0], name, value), place.held[1])
    return put(place.held, (step_of(place.process).number, name), value)


def _with_part(step: Step, consumer: int, child: int, value: str) -> Step:
    parts = replaced(step.progress[consumer], child, value)
    return step._replace(progress=replaced(step.progress, consumer, parts))


# -- the parent ---------------------------------------------------------------------------------------------------


def _split(place: Place, thread: Thread) -> Moves:
    """Record that a delivery is sent in children from now on."""
    step, total = step_of(place.process), len(step_of(place.process).decision[place.consumer])
    split = step._replace(progress=replaced(step.progress, place.consumer, (PENDING,) * total))
    claims = place.config.has(Rule.CLAIM_PARENT) and total > 1
    return [(f"split {place.consumer}", mark(place, split, Thread("claim parent" if claims else "children")))]


def _claim_parent(place: Place, thread: Thread) -> Moves:
    """Claim the parent's hash as split, so that a frozen owner can't publish it any more."""
    step, consumer = step_of(place.process), place.consumer
    name = whole_hash(place.config, step, consumer)
    known = found(place.config, place.state, step, consumer, name)
    if known is None:
        after = with_consumer(place.state, consumer, stored(place, name, SPLIT))
        return [(f"claim {consumer} as split", turn(place, Thread("children"), after))]
    return [(f"parent of {consumer} is {known}", turn(place, Thread("children" if known == SPLIT else "mark")))]


# -- the children -------------------------------------------------------------------------------------------------


def _children(place: Place, thread: Thread) -> Moves:
    """Send the next child, each after the previous one's ack."""
    step, consumer = step_of(place.process), place.consumer
    parts = step.progress[consumer]
    child = next((i for i, part in enumerate(parts) if part == PENDING), None)
    if child is None:
        return [("children done", turn(place, Thread("ended")))]
    record, name = step.decision[consumer][child], _name(place, child)
    known = found(place.config, place.state, step, consumer, name)
    if known == NACKED:
        return [(f"child {record} is nacked", turn(place, Thread("nack", child)))]
    sent = with_consumer(place.state, consumer, _with_child(place, name, known, record))
    moves = [(f"send child {record} to {consumer}", turn(place, Thread("mark child", child), sent))]
    return moves + _errors(place, child, record, sent) if place.has_error else moves


def _with_child(place: Place, name: Any, known: Any, record: int) -> Any:
    if place.kind == "direct":
        return (*place.held, record)
    if known is not None:
        return place.held
    if place.kind == "pg":
        return (put(place.held[0], name, WRITTEN), (*place.held[1], record))
    return put(place.held, (step_of(place.process).number, name), (record,))


def _errors(place: Place, child: int, record: int, sent: State) -> Moves:
    config, consumer, failed = place.config, place.consumer, place.after_error
    claims = config.has(Rule.CLAIM_PARENT) and config.has(Rule.CLAIM_CHILD) and place.kind != "direct"
    moves = [(f"{consumer} rejects {record}", turn(place, Thread("claim child" if claims else "nack", child), failed))]
    if not config.once:
        return [*moves, (f"lone unclassified error {consumer}", transient(failed, place.process))]
    after = sent._replace(budgets=failed.budgets)
    if not config.has(Rule.ONCE_NO_RESEND):
        label = f"unclassified bulk error {consumer}, {record} was written: children"
        return [*moves, (label, turn(place, Thread("children"), after))]
    # at-most-once: after an error the rest of the delivery is dropped
    step = step_of(place.process)
    parts = (DONE,) * len(step.decision[consumer])
    dropped = step._replace(progress=replaced(step.progress, consumer, parts))
    return [*moves, (f"unknown error {consumer}", turn(place, Thread("ended"), after, dropped))]


def _mark_child(place: Place, thread: Thread) -> Moves:
    step = _with_part(step_of(place.process), place.consumer, thread.at, DONE)
    return [("mark child", mark(place, step, Thread("children")))]


# -- rejections ---------------------------------------------------------------------------------------------------


def is_known(place: Place, record: int) -> bool:
    """Return whether the record has a dead letter in this step already."""
    step = step_of(place.process)
    return record in step.decision[-1] or any(record in letter.records for letter in step.letters)


def _exceeds(place: Place, record: int) -> Moves:
    why = f"threshold at {record % 100} (rejected)"
    return [("rejection exceeds the threshold", fails(place.state, place.process, why))]


def _claim_child(place: Place, thread: Thread) -> Moves:
    """Claim a rejected child's hash as nacked, so that a frozen owner's late success can't happen as well."""
    step, consumer = step_of(place.process), place.consumer
    record, name = step.decision[consumer][thread.at], _name(place, thread.at)
    if not place.owns:
        return [("zombie ends", turn(place, ZOMBIE))]
    if not is_known(place, record) and window_with_nack(place.config, place.state) is None:
        return _exceeds(place, record)
    known = found(place.config, place.state, step, consumer, name)
    if known is not None and known != NACKED:
        return [("child was delivered", turn(place, Thread("mark child", thread.at)))]
    after = with_consumer(place.state, consumer, stored(place, name, NACKED))
    return [(f"claim {record} as nacked by {consumer}", turn(place, Thread("nack", thread.at), after))]


def _nack(place: Place, thread: Thread) -> Moves:
    """Record a rejection: the window takes it next in order, and it becomes a dead letter."""
    config, state, step, consumer = place.config, place.state, step_of(place.process), place.consumer
    record = step.decision[consumer][thread.at]
    if not place.owns:
        return [("zombie ends", turn(place, ZOMBIE))]
    nacked = _with_part(step, consumer, thread.at, NACKED)
    before = dict(state.outcomes)[record]
    outcome = "".join(sorted((before if before != "d" else "") + "ab"[consumer]))

    def noted(after: State) -> State:
        return with_outcomes(after, [(record, outcome)])

    # one source record makes at most one nack and one dead letter
    if is_known(place, record) and config.has(Rule.ONE_NACK):
        return [("second nack of one record", mark(place, nacked, Thread("children"), noted))]
    window = window_with_nack(config, state)
    if window is None:
        return _exceeds(place, record)
    nacked = nacked._replace(letters=(*nacked.letters, letter_of(place, thread.at, (record,))))

    def counted(after: State) -> State:
        return noted(after._replace(window=window, nacks=(*after.nacks, 1)))

    return [(f"nack {record} recorded", mark(place, nacked, Thread("children"), counted))]


def letter_of(place: Place, child: int, records: tuple[int, ...]) -> Letter:
    """Return the dead letters of records that are refused together: one delivery, named by the first of them."""
    config, step = place.config, step_of(place.process)
    queue = len(config.kinds) - 1
    # a number space apart from the step's own dead letters: else two of them share a hash
    has_space = config.has(Rule.LETTER_HASH)
    number = LETTERS + records_of(place.state, step.ranges).index(records[0]) if has_space else child
    generation = whole_hash(config, step, place.consumer)[0]
    base = step.base[queue] + len(step.decision[queue]) + sum(len(letter.records) for letter in step.letters)
    return Letter(records, (generation, step.ranges, queue, number, len(records)), base, False)


def publish_letter(place: Place, thread: Thread) -> tuple[str, State]:
    """Publish the first dead letters of rejected records that are not marked; to a file one after another."""
    step, held = step_of(place.process), place.held
    number = next(i for i, letter in enumerate(step.letters) if not letter.done)
    letter = step.letters[number]
    if place.kind == "file":
        return _write_letter(place, number, thread.at)
    if place.kind == "pg":
        is_new = not get(held[0], letter.name)
        content: Any = (put(held[0], letter.name, WRITTEN), (*held[1], *letter.records)) if is_new else held
    elif place.kind == "folder":
        key = (step.number, letter.name)
        content = held if get(held, key) else put(held, key, letter.records)
    else:
        content = (*held, *letter.records)
    after = with_consumer(place.state, place.consumer, content)
    return f"dead-letter {letter.records}", turn(place, Thread("mark letter", number), after)


def _write_letter(place: Place, number: int, at: int) -> tuple[str, State]:
    letter = step_of(place.process).letters[number]
    record, base = letter.records[at], letter.base + at
    filled = place.held + (HOLE,) * (base + 1 - len(place.held))
    broken = "" if filled[base] in (HOLE, TORN, record) else "overwrote a record"
    after = with_consumer(place.state, place.consumer, replaced(filled, base, record))._replace(broken=broken)
    is_last = at + 1 == len(letter.records)
    return f"dead-letter {record}", turn(
        place, Thread("mark letter", number) if is_last else Thread("ended", at + 1), after
    )


def _mark_letter(place: Place, thread: Thread) -> Moves:
    step = step_of(place.process)
    letter = step.letters[thread.at]._replace(done=True)
    done = step._replace(letters=replaced(step.letters, thread.at, letter))
    return [("mark dead letter", mark(place, done, Thread("ended")))]


_STEPS = {
    "split": _split,
    "claim parent": _claim_parent,
    "children": _children,
    "mark child": _mark_child,
    "claim child": _claim_child,
    "nack": _nack,
    "mark letter": _mark_letter,
}
