"""Lines 2 to 5: log, stage and prepare a planned step."""

from __future__ import annotations

from model.changes.log import GapError, append, read
from model.changes.plan import Moves, name_of
from model.changes.rules import Rule
from model.changes.state import LATE, QUEUE, Config, Letter, Share, State, Step

Shares = dict[str, list[str]]


class SourceGoneError(Exception):
    """The data of a unit is not there any more."""


class SourceFailedError(Exception):
    """Reading fails at ``position``."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


CannotRead = (GapError, SourceGoneError, SourceFailedError)


def failed(state: State, why: str) -> Moves:
    """End the run with an error."""
    return [(f"run fails: {why}", state._replace(run=None, status=f"failed: {why}"))]


def is_appended(state: State, step: Step) -> bool:
    """Return whether the log holds everything that the step reads from it."""
    return step.reach is None or len(state.log) >= step.end


def append_to_log(config: Config, state: State) -> Moves:
    """Log the records of a planned step, in one transaction with the manifest."""
    step = state.step
    assert step is not None and step.reach is not None
    try:
        _read_unit(config, state, step.unit, *step.reach)
    except SourceGoneError:
        return failed(state, "source gone")
    except SourceFailedError as error:
        return _cut(config, state, step, error.position - step.reach[0])
    return [(f"log {step.unit}{step.reach}", append(config, state, step.unit, *step.reach))]


def _read_unit(config: Config, state: State, unit: str, start: int, end: int) -> tuple[str, ...]:
    if unit in state.gone:
        raise SourceGoneError
    if (fails_at := config.unreadable.get(unit, end)) < end:
        raise SourceFailedError(fails_at)
    return config.records(unit, start, end)


def _cut(config: Config, state: State, step: Step, whole: int) -> Moves:
    # what was read before the failure is delivered and acked, then the run ends with the error
    if not config.has(Rule.FAILURE_CUTS):
        return failed(state, "source failed")
    if whole <= 0:
        return failed(state._replace(step=None), "source failed")
    reach = (step.reach[0], step.reach[0] + whole) if step.reach else None
    shorter = step._replace(end=step.start + whole, reach=reach, failing=True)
    return [(f"cut to {name_of(shorter)}", state._replace(step=shorter))]


def input_of(config: Config, state: State, step: Step) -> tuple[str, ...]:
    """Return the records that a step reads, from the log or from the unit of the file."""
    if step.kind == "replay":
        return tuple(state.letters[number].record for number in step.letters)
    if step.logged:
        return read(config, state, step.start, step.end)
    return _read_unit(config, state, state.file.unit, step.start, step.end)


def stage(config: Config, state: State) -> Moves:
    """Read, process, stage and prepare the planned step: from here its decision never changes."""
    step = state.step
    assert step is not None
    try:
        records = input_of(config, state, step)
    except GapError:
        return failed(state, "gap in the log")
    except SourceGoneError:
        return failed(state, "source gone")
    except SourceFailedError as error:
        return _cut(config, state, step, error.position - step.start)
    shares = shares_of(config, state, step, records)
    made = tuple(Share(name, tuple(rows), "open" if rows else "done") for name, rows in shares.items())
    after = state._replace(step=step._replace(code=state.file.code, shares=made))
    label = f"prepare {name_of(step)}: " + ", ".join(f"{share.consumer} {list(share.records)}" for share in made)
    return [(label, _with_expectations(config, _with_letters(config, after, records), records))]


def shares_of(config: Config, state: State, step: Step, records: tuple[str, ...]) -> Shares:
    """Return what each consumer gets of these records with the code of today."""
    code = state.file.code
    good = [r for r in records if r not in config.nacked[code] and r not in config.filtered[code]]
    bad = [r for r in records if r in config.nacked[code]]
    if step.kind == "replay":
        ways = _ways(state, step)
        pairs = [pair for pair in zip(records, ways, strict=True) if pair[0] in good]
        return {name: [r for r, way in pairs if name in way] for name in sorted(state.consumers)}
    # a record that already has a dead letter makes no second one in the queue
    new = [r for r in bad if r not in step.lettered]
    return {QUEUE: new} | dict.fromkeys(_consumers(config, state, step), good)


def _consumers(config: Config, state: State, step: Step) -> tuple[str, ...]:
    if step.kind == "catch-up" or config.has(Rule.FINISH_FIRST):
        return step.consumers
    return tuple(sorted(state.consumers))  # registered since: a planned step was staged for them as well


def _ways(state: State, step: Step) -> list[set[str]]:
    """Return the destinations of each letter of a replay."""
    every, upto = set(state.consumers), state.catch_up.upto if state.catch_up is not None else 0
    ways: list[set[str]] = []
    for number in step.letters:
        letter = state.letters[number]
        # a destination that caught up, or will, has the record from the log
        caught_up = {LATE} if letter.offset < upto else set[str]()
        ways.append(every - caught_up if letter.missed == "all" else every & {letter.missed})
    return ways


def _with_letters(config: Config, state: State, records: tuple[str, ...]) -> State:
    step = state.step
    assert step is not None
    if step.kind == "replay":
        return state
    missed = LATE if step.kind == "catch-up" else "all"
    first = step.start if step.logged else state.source.records
    rows = [Letter(r, first + i, missed) for i, r in enumerate(records) if r in config.nacked[state.file.code]]
    return state._replace(letters=state.letters + tuple(rows))


def _with_expectations(config: Config, state: State, records: tuple[str, ...]) -> State:
    """Note for the invariants who has to get these records, and what the code drops."""
    step = state.step
    assert step is not None
    code = config.filtered[state.file.code]
    if step.kind == "replay":
        pairs = {(name, r) for r, way in zip(records, _ways(state, step), strict=True) for name in way}
    else:
        names = (LATE,) if step.kind == "catch-up" else tuple(state.consumers)
        pairs = {(name, r) for name in names for r in records}
    dropped = {pair for pair in pairs if pair[1] in code}
    return state._replace(due=state.due | pairs, dropped=state.dropped | dropped)
