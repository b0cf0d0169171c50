"""Destinations that name all the records they refuse: those are nacked together, and the others are sent in one go.

A child is a tuple of places. What is still to be sent is stored as ``("todo", child, child, ...)``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

from model.protocol.children import is_known, letter_of, stored
from model.protocol.decisions import found, set_hash, whole_hash, window_with_nack
from model.protocol.rules import Rule
from model.protocol.shared import Moves, Place, fails, mark, step_of, transient, turn
from model.protocol.state import (
    DONE,
    NACKED,
    PENDING,
    SPLIT,
    WRITTEN,
    ZOMBIE,
    State,
    Step,
    Thread,
    put,
    replaced,
    with_consumer,
    with_outcomes,
)

Places = tuple[int, ...]


def whole_fails(place: Place) -> Thread:
    """Return what follows an error of a whole delivery that names nothing."""
    return _of_whole(place, tuple(range(len(step_of(place.process).decision[place.consumer]))), ())


def resumed(place: Place) -> Thread:
    """Return where a delivery that was split goes on."""
    is_divided = len(step_of(place.process).decision[place.consumer]) > 1
    return Thread("claim whole" if is_divided and place.config.has(Rule.CLAIM_PARENT) else "named")


def whole_refusals(place: Place) -> Moves:
    """Return the ways in which a destination may refuse records of a whole delivery."""
    return _refusals(place, tuple(range(len(step_of(place.process).decision[place.consumer]))), _of_whole)


def _of_whole(place: Place, group: Places, refused: Places) -> Thread:
    return Thread("split whole", group=group, refused=refused)


def _refusals(place: Place, group: Places, following: Callable[[Place, Places, Places], Thread]) -> Moves:
    """Return the ways in which a destination may refuse records of a child; nothing of it is written then."""
    records = step_of(place.process).decision[place.consumer]
    some = chain.from_iterable(combinations(group, count) for count in range(1, len(group) + 1))
    return [
        (
            f"{place.consumer} rejects {tuple(records[at] for at in refused)}",
            turn(place, following(place, group, refused), place.after_error),
        )
        for refused in some
    ]


def _pending(place: Place) -> tuple[Places, ...]:
    """Return the children that are still to be sent; all of it before it is split."""
    part = step_of(place.process).progress[place.consumer]
    total = len(step_of(place.process).decision[place.consumer])
    return part[1:] if isinstance(part, tuple) else (tuple(range(total)),)


def _with(place: Place, group: Places, *children: Places) -> Step:
    """Return the step with one of its children replaced by others, of which the empty ones are dropped."""
    step, rest = step_of(place.process), [other for other in _pending(place) if other != group]
    left = sorted((*rest, *filter(None, children)))
    return step._replace(progress=replaced(step.progress, place.consumer, (PENDING, *left)))


# -- dividing -----------------------------------------------------------------------------------------------------


def _split_whole(place: Place, thread: Thread) -> Moves:
    """Record that the whole delivery is sent in children from now on, then claim its hash."""
    whole, half = thread.group, len(thread.group) // 2
    children = (whole,) if thread.refused or not half else (whole[:half], whole[half:])
    does = "claim whole" if place.config.has(Rule.CLAIM_PARENT) and half else "divide"
    divided = _with(place, whole, *children)
    following = thread._replace(does=does) if does == "claim whole" or thread.refused else Thread("named")
    return [(f"split {place.consumer}", mark(place, divided, following))]


def _claim_whole(place: Place, thread: Thread) -> Moves:
    """Claim the hash of the whole delivery as split; before anything else when it is resumed."""
    step, consumer = step_of(place.process), place.consumer
    return _claimed(place, thread, whole_hash(place.config, step, consumer), thread.refused != ())


def _claim_group(place: Place, thread: Thread) -> Moves:
    """Claim the hash of a child as split, so that a frozen owner can't publish it any more; only then divide it."""
    return _claimed(place, thread, set_hash(place.config, step_of(place.process), place.consumer, thread.group), True)


def _claimed(place: Place, thread: Thread, name: Any, divides: bool) -> Moves:
    step, consumer = step_of(place.process), place.consumer
    known = found(place.config, place.state, step, consumer, name)
    following = thread._replace(does="divide") if divides else Thread("named")
    if known is None:
        after = with_consumer(place.state, consumer, stored(place, name, SPLIT))
        return [(f"claim {name[3:]} as split", turn(place, following, after))]
    if known == SPLIT:
        return [("is split", turn(place, following))]
    every = tuple(range(len(step.decision[consumer])))
    return [("was delivered", turn(place, Thread("mark group", group=thread.group or every)))]


def _divide(place: Place, thread: Thread) -> Moves:
    """Divide a child: into halves, or into what is refused and the rest."""
    group, refused = thread.group, thread.refused
    if not refused:
        half = len(group) // 2
        late = not place.config.has(Rule.CLAIM_FIRST)
        following = Thread("claim late group", group=group) if late else Thread("named")
        return [(f"halve {group}", mark(place, _with(place, group, group[:half], group[half:]), following))]
    if accepted := _accepted(place, refused):
        return [("refused", turn(place, Thread("claim batch", group=group, refused=accepted)))]
    if len(group) == 1:
        record = step_of(place.process).decision[place.consumer][group[0]]
        return [("rejection exceeds the threshold", fails(place.state, place.process, _why(record)))]
    before, behind = tuple(at for at in group if at < refused[0]), tuple(at for at in group if at > refused[0])
    divided = _with(place, group, before, (refused[0],), behind)
    return [(f"split {group} at {refused[0]}", mark(place, divided, Thread("named")))]


def _why(record: int) -> str:
    return f"threshold at {record % 100} (rejected)"


def _accepted(place: Place, refused: Places) -> Places:
    """Return those before the first that the window does not accept."""
    if not place.config.has(Rule.BATCH_PREFIX):
        return refused
    records, state = step_of(place.process).decision[place.consumer], place.state
    for count, at in enumerate(refused):
        if is_known(place, records[at]):
            continue
        window = window_with_nack(place.config, state)
        if window is None:
            return refused[:count]
        state = state._replace(window=window)
    return refused


def _of_child(place: Place, group: Places, refused: Places = ()) -> Thread:
    """Return how a child that failed is divided: one of a single record is not claimed as split."""
    claims = place.config.has(Rule.CLAIM_PARENT) and place.config.has(Rule.CLAIM_FIRST) and len(group) > 1
    return Thread("claim group" if claims else "divide", group=group, refused=refused)


def _claim_late_group(place: Place, thread: Thread) -> Moves:
    """Claim a child that is divided already; only without claim-first."""
    name = set_hash(place.config, step_of(place.process), place.consumer, thread.group)
    return _claimed(place, thread, name, False)


# -- nacks --------------------------------------------------------------------------------------------------------


def _claim_batch(place: Place, thread: Thread) -> Moves:
    """Claim every refused record as nacked, one after another."""
    step, consumer, config = step_of(place.process), place.consumer, place.config
    claims = config.has(Rule.CLAIM_CHILD) and config.has(Rule.BATCH_CLAIMS)
    if thread.at == len(thread.refused) or not claims:
        return [("all are claimed", turn(place, thread._replace(does="batch")))]
    at = thread.refused[thread.at]
    name = set_hash(config, step, consumer, (at,))
    known = found(config, place.state, step, consumer, name)
    following = thread._replace(at=thread.at + 1)
    if known is None:
        return [
            (
                f"claim {at} as nacked",
                turn(place, following, with_consumer(place.state, consumer, stored(place, name, NACKED))),
            )
        ]
    if known == NACKED or not config.has(Rule.BATCH_FOUND):
        return [(f"{at} is nacked", turn(place, following))]
    return [(f"{at} was delivered", turn(place, following._replace(delivered=(*thread.delivered, at))))]


def _batch(place: Place, thread: Thread) -> Moves:
    """Record all of them in one transaction: the window, one delivery of dead letters, and what is left to be sent."""
    config, state, step, consumer = place.config, place.state, step_of(place.process), place.consumer
    if not place.owns:
        return [("zombie ends", turn(place, ZOMBIE))]
    records = step.decision[consumer]
    nacked = [records[at] for at in thread.refused if at not in thread.delivered]
    # one source record makes at most one nack and one dead letter
    fresh = tuple(record for record in nacked if not (is_known(place, record) and config.has(Rule.ONE_NACK)))
    left = _with(place, thread.group, tuple(at for at in thread.group if at not in thread.refused))
    window, nacks = state.window, state.nacks + (1,) * len(fresh)
    for _ in fresh if config.window else ():
        window = (*window, 1)[-config.window :]
    outcomes = dict(state.outcomes)
    noted = [
        (record, "".join(sorted((outcomes[record] if outcomes[record] != "d" else "") + "ab"[consumer])))
        for record in nacked
    ]

    def counted(after: State) -> State:
        return with_outcomes(after._replace(window=window, nacks=nacks), noted)

    late = Thread("claim late", refused=thread.refused)
    following = Thread("named") if config.has(Rule.BATCH_CLAIMS) else late
    letters = (*step.letters, letter_of(place, thread.refused[0], fresh)) if fresh else step.letters
    if not config.has(Rule.BATCH_WHOLE):
        return [
            (
                f"{nacked} passed",
                mark(place, left, Thread("letters", group=thread.group, refused=tuple(fresh)), counted),
            )
        ]
    return [(f"nack {nacked} together", mark(place, left._replace(letters=letters), following, counted))]


def _letters(place: Place, thread: Thread) -> Moves:
    """Record the dead letters by themselves; only without batch-whole."""
    step = step_of(place.process)
    letters = (*step.letters, letter_of(place, 0, thread.refused)) if thread.refused else step.letters
    return [("letters recorded", mark(place, step._replace(letters=letters), Thread("named")))]


def _claim_late(place: Place, thread: Thread) -> Moves:
    """Claim what is recorded as nacked already; only without batch-claims."""
    step, consumer = step_of(place.process), place.consumer
    after = place.state
    for at in thread.refused:
        name = set_hash(place.config, step, consumer, (at,))
        if found(place.config, after, step, consumer, name) is None:
            later = Place(place.config, after, place.process, consumer)
            after = with_consumer(after, consumer, stored(later, name, NACKED))
    return [("claimed late", turn(place, Thread("named"), after))]


# -- what is left -------------------------------------------------------------------------------------------------


def _named(place: Place, thread: Thread) -> Moves:
    """Send the next child in one go."""
    step, consumer, pending = step_of(place.process), place.consumer, _pending(place)
    if not pending:
        done = step._replace(progress=replaced(step.progress, consumer, DONE))
        return [(f"mark {consumer} done", mark(place, done, Thread("ended")))]
    group = pending[0]
    name = set_hash(place.config, step, consumer, group)
    known = found(place.config, place.state, step, consumer, name)
    if known == NACKED:
        return [(f"{group} is nacked", turn(place, _of_child(place, group, group)))]
    if known == SPLIT:
        return [(f"{group} is split", turn(place, _of_child(place, group)))]
    sent = with_consumer(place.state, consumer, _with_child(place, name, known, group))
    moves = [(f"send {group} to {consumer}", turn(place, Thread("mark group", group=group), sent))]
    return moves + _errors(place, group, sent) if place.has_error and known is None else moves


def _with_child(place: Place, name: Any, known: Any, group: Places) -> Any:
    records = tuple(step_of(place.process).decision[place.consumer][at] for at in group)
    if known is not None:
        return place.held
    if place.kind == "pg":
        return (put(place.held[0], name, WRITTEN), (*place.held[1], *records))
    return put(place.held, (step_of(place.process).number, name), records)


def _errors(place: Place, group: Places, sent: State) -> Moves:
    moves, failed = _refusals(place, group, _of_child), place.after_error
    if len(group) == 1:
        return [*moves, ("lone unclassified error", transient(failed, place.process))]
    halve = _of_child(place, group)
    after = failed._replace(consumers=sent.consumers)
    return [
        *moves,
        (f"bulk error at {group}, nothing written", turn(place, halve, failed)),
        (f"bulk error at {group}, written", turn(place, halve, after)),
    ]


def _mark_group(place: Place, thread: Thread) -> Moves:
    pending = _pending(place)
    group = thread.group
    # children recorded in the meantime are delivered as well
    rest = tuple(child for child in pending if not set(child) <= set(group))
    step = step_of(place.process)
    done = step._replace(progress=replaced(step.progress, place.consumer, (PENDING, *rest)))
    return [(f"mark {group}", mark(place, done, Thread("named")))]


STEPS = {
    "split whole": _split_whole,
    "claim whole": _claim_whole,
    "claim group": _claim_group,
    "claim late group": _claim_late_group,
    "divide": _divide,
    "claim batch": _claim_batch,
    "claim late": _claim_late,
    "batch": _batch,
    "letters": _letters,
    "named": _named,
    "mark group": _mark_group,
}
