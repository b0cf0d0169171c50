"""Lines 6 and 7: publish a prepared step, and what done moves."""

from __future__ import annotations

from model.changes.plan import Moves
from model.changes.rules import Rule
from model.changes.stage import CannotRead, failed, input_of, shares_of
from model.changes.state import LATE, OUT, QUEUE, Config, Letter, Refusal, State, Step, published, with_published


def publish(config: Config, state: State) -> Moves:
    """Return the next effect of publishing; nothing where all of the step is published."""
    step = state.step
    assert step is not None
    if not step.staged and any(share.state == "open" for share in step.shares):
        return _staged_again(config, state, step)
    # dead letters first: of the step, then of refused records
    for i, refusal in enumerate(step.refused):
        if not refusal.published:
            return [_publish_letter(config, state, step, i)]
    for i, share in enumerate(step.shares):
        if share.state == "written":
            return [(f"mark {share.consumer}", _with_share(state, step, i, "done"))]
        if share.state == "open":
            return _deliver(config, state, step, i)
    return []


def _with_share(state: State, step: Step, number: int, value: str) -> State:
    shares = list(step.shares)
    shares[number] = shares[number]._replace(state=value)
    return state._replace(step=step._replace(shares=tuple(shares)))


def _deliver(config: Config, state: State, step: Step, number: int) -> Moves:
    share = step.shares[number]
    in_file = share.consumer != LATE or state.file.late
    if not in_file:
        # it can't be published: its settings are no longer in the file
        return [(f"skip {share.consumer}", _with_share(state, step, number, "void"))]
    known = {refusal.record for refusal in step.refused}
    if share.consumer == OUT:
        for place, record in enumerate(share.records):
            if record in config.refused and record not in known:
                return _refuse(config, state, step, place, record)
    rows = tuple(r for r in share.records if share.consumer != OUT or r not in config.refused)
    after = _written(state, share.consumer, rows, step.kind, _hash(config, step, share.consumer))
    return [(f"publish {list(rows)} to {share.consumer}", _with_share(after, step, number, "written"))]


def _hash(config: Config, step: Step, consumer: str, *child: int) -> tuple[object, ...]:
    # no attempt, run, code or file: the same range of the same source has the same hash
    # offsets of the log and positions of the source are different numbers under one generation
    of_log = step.logged and config.has(Rule.HASH_NAMES_LOG)
    return (step.kind, of_log, step.generation, step.start, step.end, consumer, *child)


def _written(state: State, consumer: str, rows: tuple[str, ...], kind: str, name: tuple[object, ...]) -> State:
    there = published(state, consumer)
    if name in there.hashes:
        return state  # all or nothing: an existing delivery is not written again
    new = there._replace(rows=there.rows + tuple((r, kind) for r in rows), hashes=there.hashes | {name})
    return with_published(state, consumer, new)


def _staged_again(config: Config, state: State, step: Step) -> Moves:
    """Stage a prepared step whose staging is lost; it must give what was prepared."""
    try:
        if not step.logged and step.kind == "data" and step.unit != state.file.unit:
            return failed(state, "staging lost and cannot be rebuilt")
        shares = shares_of(config, state, step, input_of(config, state, step))
    except CannotRead:
        return failed(state, "staging lost and cannot be rebuilt")
    if any(list(share.records) != shares.get(share.consumer) for share in step.shares if share.state == "open"):
        return failed(state, "staging lost and cannot be rebuilt")
    return [("stage again", state._replace(step=step._replace(staged=True)))]


# -- records refused at publishing -------------------------------------------------------------------------------------


def _refuse(config: Config, state: State, step: Step, place: int, record: str) -> Moves:
    """Record the nack of a refused record with its letter, in one transaction."""
    if step.kind == "replay":  # its letter stays open
        refused = step._replace(refused=(*step.refused, Refusal(record, record, True)))
        return [(f"{record} refused again", state._replace(step=refused))]
    found = record
    if not config.has(Rule.STAGED_LETTERS):
        # before: the range was read and processed again, with the source and the code of today
        try:
            share = shares_of(config, state, step, input_of(config, state, step)).get(OUT, [])
        except CannotRead:
            return failed(state, "source gone")
        if place >= len(share):
            return failed(state, "another number of records")
        found = share[place]
    letter = Letter(found, _offset_of(state, step, record), OUT)
    refused = step._replace(refused=(*step.refused, Refusal(record, found)))
    broken = "" if found == record else f"wrong letter: holds {found}, but {record} was refused"
    after = state._replace(step=refused, letters=(*state.letters, letter), broken=broken)
    return [(f"{OUT} refuses {record}; letter of {found} recorded", after)]


def _offset_of(state: State, step: Step, record: str) -> int:
    if step.logged:
        return next(i for i, entry in enumerate(state.log) if entry.record == record and i >= step.start)
    return state.source.records + int(record[1:]) - step.start


def _publish_letter(config: Config, state: State, step: Step, number: int) -> tuple[str, State]:
    refusal = step.refused[number]
    refused = list(step.refused)
    refused[number] = refusal._replace(published=True)
    name = _hash(config, step, QUEUE, number)
    after = _written(state, QUEUE, (refusal.letter,), step.kind, name)
    return f"publish letter of {refusal.letter}", after._replace(step=step._replace(refused=tuple(refused)))


# -- done --------------------------------------------------------------------------------------------------------------


def finish(config: Config, state: State) -> State:
    """Move positions and offsets and close the letters of a replay, in one transaction."""
    step = state.step
    assert step is not None
    state = _with_offsets(config, state._replace(step=None), step)
    if step.kind == "replay":
        return _with_closed_letters(config, state, step)._replace(replays=state.replays + 1)
    if step.kind == "catch-up":
        late = state.catch_up
        if late is None or late.generation != step.generation:
            return state
        return state._replace(catch_up=late._replace(position=step.end))
    source = state.source
    if source.generation != step.generation:
        return state
    return state._replace(source=source._replace(position=step.end, records=source.records + step.end - step.start))


def _with_offsets(config: Config, state: State, step: Step) -> State:
    if step.kind == "replay":
        return state
    first = step.start if step.logged else state.source.records
    upto = first + step.end - step.start
    names = {share.consumer for share in step.shares if share.consumer != QUEUE}
    if not config.has(Rule.DECISION_OFFSETS) and step.kind == "data":
        # before: offsets of all consumers in the file, including those that the decision does not name
        names = {OUT} | ({LATE} if state.file.late else set[str]())
    offsets = dict(state.offsets)
    for name in names:
        offsets[name] = max(offsets.get(name, 0), upto)
    return state._replace(offsets=tuple(sorted(offsets.items())))


def _with_closed_letters(config: Config, state: State, step: Step) -> State:
    assert step.code is not None
    again = {refusal.record for refusal in step.refused} | config.nacked[step.code]
    letters = list(state.letters)
    for number in step.letters:
        letter = letters[number]
        has_way = letter.missed == "all" or any(share.consumer == letter.missed for share in step.shares)
        if letter.record not in again and has_way:
            letters[number] = letter._replace(is_open=False)
    return state._replace(letters=tuple(letters))
