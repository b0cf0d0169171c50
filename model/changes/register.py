"""What a run changes in the store because of its file: consumers, units and generations, catch-ups.

Each function is one transaction, or a part of :func:`registered`, which is one.
"""

from __future__ import annotations

from model.changes.log import padded, whole_from
from model.changes.rules import Rule
from model.changes.state import (
    LATE,
    OUT,
    CatchUp,
    Config,
    Place,
    Published,
    Source,
    State,
    Step,
    published,
    with_published,
)


class LogNotReadUpError(Exception):
    """The log is to be left while it holds records that are not delivered."""


def retired(config: Config, state: State) -> State:
    """Return the state without a destination that left the file; its open deliveries are void."""
    if LATE not in state.consumers or state.file.late:
        return state
    # a destination that returns under this name is another one: none of this one's letters may reach it
    keeps_letters = not config.has(Rule.RETIRE_LETTERS)
    letters = (one if keeps_letters or one.missed != LATE else one._replace(is_open=False) for one in state.letters)
    state = state._replace(
        step=_without_late(config, state.step),
        consumers=state.consumers - {LATE},
        offsets=tuple(pair for pair in state.offsets if pair[0] != LATE),
        catch_up=None,
        letters=tuple(letters),
        due=frozenset(pair for pair in state.due if pair[0] != LATE),
        dropped=frozenset(pair for pair in state.dropped if pair[0] != LATE),
    )
    # a new one is empty, but a table may have kept its delivery hashes
    return with_published(state, LATE, Published((), published(state, LATE).hashes))


def _without_late(config: Config, step: Step | None) -> Step | None:
    if step is None:
        return None
    if not step.is_prepared:
        names_it = LATE in step.consumers and config.has(Rule.RETIRE_VOIDS)
        return None if names_it else step
    shares = tuple(s._replace(state="void") if s.consumer == LATE else s for s in step.shares)
    return step._replace(shares=shares)


def registered(config: Config, state: State) -> State:
    """Return the state with the connectors of the file. Raises ``LogNotReadUpError``."""
    state = _without_dropped_catch_up(config, state)
    state = _with_log_mode(config, state)
    state = _with_unit(config, state)
    if state.file.late and LATE not in state.consumers:
        if state.file.late == "log":
            state = _with_catch_up(config, state)
        state = state._replace(consumers=state.consumers | {LATE})
    return state


def _without_dropped_catch_up(config: Config, state: State) -> State:
    """Give up the rest of a catch-up that the file no longer asks for."""
    catch_up = state.catch_up
    if catch_up is None or state.file.late == "log":
        return state
    rest = {(LATE, entry.record) for entry in state.log[catch_up.position : catch_up.upto]}
    state = state._replace(due=state.due - rest)
    # the caught-up range is kept: a replay of dead letters must not deliver it a second time
    kept = catch_up._replace(upto=catch_up.position) if config.has(Rule.KEEP_PROMISE) else None
    return state._replace(catch_up=kept)


def _with_catch_up(config: Config, state: State) -> State:
    """Promise a new destination every whole entry of the log below the stored position."""
    upto = state.source.position
    first = min(upto, whole_from(config, state))
    number = state.catch_ups + 1
    # records decided by an open step without the newcomer must also come from the log
    decided = state.step.end if state.step is not None and state.step.is_prepared else upto
    due = {(LATE, entry.record) for entry in state.log[first:decided]}
    return state._replace(catch_up=CatchUp(number, first, upto), catch_ups=number, due=state.due | due)


# -- log mode and unit --------------------------------------------------------------------------------------------


def _with_log_mode(config: Config, state: State) -> State:
    source = state.source
    if state.file.logged == source.logged:
        return state
    if source.logged:
        if source.position != len(state.log):
            raise LogNotReadUpError
        # the log's position belongs to the logged unit: a new unit in the same edit starts at its own beginning
        unit = source.unit if config.has(Rule.SWITCH_BEFORE_UNIT) else state.file.unit
        return state._replace(source=source._replace(unit=unit, position=state.log_position, logged=False))
    position, offset = source.position, source.records
    source = source._replace(position=offset, logged=True)
    return state._replace(log=padded(state), log_position=position, source=source)


def _with_unit(config: Config, state: State) -> State:
    """Make another unit current: one seen before goes on where it was, under its own generation."""
    source, unit = state.source, state.file.unit
    if unit == source.unit:
        return state
    remembers = not source.logged or config.has(Rule.UNITS_REMEMBERED)
    if remembers:
        state = _left(state)
    known = next((place for place in state.places if place.unit == unit), None) if remembers else None
    place = known or Place(unit, _generation(config, state), 0)
    state = state._replace(highest=max(state.highest, place.generation))
    if source.logged:
        return state._replace(
            source=source._replace(unit=unit, generation=place.generation), log_position=place.position
        )
    return state._replace(source=source._replace(unit=unit, generation=place.generation, position=place.position))


def _left(state: State) -> State:
    source = state.source
    position = state.log_position if source.logged else source.position
    others = tuple(place for place in state.places if place.unit != source.unit)
    place = Place(source.unit, source.generation, position)
    return state._replace(places=tuple(sorted((*others, place))))


def _generation(config: Config, state: State) -> int:
    # above every generation ever given: else a third unit gets the delivery hashes of the second
    return (state.highest if config.has(Rule.HIGH_WATER) else state.source.generation) + 1


# -- what a planned step still fits -------------------------------------------------------------------------------


def fits(config: Config, state: State, step: Step) -> bool:
    """Return whether a planned step may be staged: it means what it meant when it was planned."""
    file = state.file
    if step.kind == "replay" or step.logged != file.logged:
        return False
    if not _stands_at(state, step):
        return False
    if not config.has(Rule.FINISH_FIRST):
        return True
    # before registering: what the file says, not what the store says
    consumers = {OUT} | ({LATE} if file.late else set[str]())
    if step.kind == "catch-up":
        return file.late == "log"
    return step.unit == file.unit and set(step.consumers) == consumers


def _stands_at(state: State, step: Step) -> bool:
    known: Source | CatchUp | None = state.catch_up if step.kind == "catch-up" else state.source
    return known is not None and (known.generation, known.position) == (step.generation, step.start)


def refuses_open_step(config: Config, state: State) -> str:
    """Return why the earlier protocol would not start: it registered first and could not finish such a step."""
    step = state.step
    if config.has(Rule.FINISH_FIRST) or step is None or not step.is_prepared or step.kind == "replay":
        return ""
    if step.kind == "catch-up" and not state.file.late:
        return ""
    if step.logged != state.file.logged:
        return "reading changed"
    if step.logged and step.kind == "data" and state.source.unit != state.file.unit:
        return "source changed"
    return ""
