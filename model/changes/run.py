"""One run, phase by phase. Every transition is one transaction or one effect outside the store."""

from __future__ import annotations

from collections.abc import Callable

from model.changes.log import unit_position
from model.changes.plan import Moves, plan
from model.changes.publish import finish, publish
from model.changes.register import LogNotReadUpError, fits, refuses_open_step, registered, retired
from model.changes.rules import Rule
from model.changes.stage import append_to_log, is_appended, stage
from model.changes.state import Config, Place, Run, State


def run_steps(config: Config, state: State) -> Moves:
    """Return what the process does next; a process that is not there is started, unless a status says not to."""
    if state.run is None:
        return [] if state.status else [("START", _to(state, _first_phase(config)))]
    return _PHASES[state.run.phase](config, state)


def _to(state: State, phase: str) -> State:
    run = state.run or Run(phase)
    return state._replace(run=run._replace(phase=phase))


def ended(state: State, status: str) -> State:
    """Return the state after the run ended."""
    return state._replace(run=None, status=status)


# -- start --------------------------------------------------------------------------------------------------------


def _first_phase(config: Config) -> str:
    if not config.has(Rule.FINISH_FIRST):
        return "retire"
    # a delivery to a removed destination can never be made: it is voided before the step ends without it
    return "retire" if config.has(Rule.RETIRE_VOIDS) else "ack"


def _retire(config: Config, state: State) -> Moves:
    if refused := refuses_open_step(config, state):
        return [(f"refused: {refused}", ended(state, f"failed: {refused}"))]
    return [("retire", _to(retired(config, state), "ack" if config.has(Rule.FINISH_FIRST) else "register"))]


def _ack(config: Config, state: State) -> Moves:
    """Ack the source at its stored position: an ack may have been lost in the crash."""
    return [("ack", _to(acked(state), "recover"))]


def _recover(config: Config, state: State) -> Moves:
    """End the open step; nothing is registered before."""
    assert state.run is not None
    step = state.step
    if step is None:
        # Only then connectors are registered, and what a newcomer catches up on is computed.
        is_due = config.has(Rule.FINISH_FIRST) and not state.run.registered
        return [("recovered", _to(state, "register" if is_due else "plan"))]
    if step.is_prepared:
        return [("recover: prepared", _to(state, "publish"))]
    if fits(config, state, step):
        return [("recover: planned", _to(state, "stage"))]
    return [("recover: void", _to(state._replace(step=None), "recover"))]


def _register(config: Config, state: State) -> Moves:
    assert state.run is not None
    if config.has(Rule.FINISH_FIRST) and not config.has(Rule.RETIRE_VOIDS):
        state = retired(config, state)
    try:
        state = registered(config, state)
    except LogNotReadUpError:
        return [("log not read up", ended(state, "failed: log not read up"))]
    state = state._replace(run=Run("ack", True))
    if config.has(Rule.FINISH_FIRST) and not config.has(Rule.ACK_AGAIN):
        state = _to(state, "plan")
    return [("register", state)]


# -- the step loop ------------------------------------------------------------------------------------------------


def _plan(config: Config, state: State) -> Moves:
    found = plan(config, state)
    if found:
        return [(label, _to(after, "stage")) for label, after in found]
    if state.file.unit in state.gone:
        return [("source gone", ended(state, "failed: source gone"))]
    return [("drained", ended(state, "idle"))]


def _stage(config: Config, state: State) -> Moves:
    assert state.step is not None
    moves = stage(config, state) if is_appended(state, state.step) else append_to_log(config, state)
    return [(label, _after_staging(after)) for label, after in moves]


def _after_staging(state: State) -> State:
    if state.run is None:
        return state
    # logged or cut, it must still be staged
    return _to(state, "publish" if state.step is not None and state.step.is_prepared else "stage")


def _publish(config: Config, state: State) -> Moves:
    """Publish what is open; a step of which everything is published is done."""
    return publish(config, state) or [("all published", _to(state, "done"))]


def _done(config: Config, state: State) -> Moves:
    assert state.step is not None
    label = f"done {state.step.unit}[{state.step.start},{state.step.end})"
    if state.step.failing:
        return [(label, _to(finish(config, state), "ack, then fail"))]
    return [(label, _to(finish(config, state), "ack"))]


def _ack_then_fail(config: Config, state: State) -> Moves:
    return [("ack; source failed", ended(acked(state), "failed: source failed"))]


_PHASES: dict[str, Callable[[Config, State], Moves]] = {
    "retire": _retire,
    "ack": _ack,
    "recover": _recover,
    "register": _register,
    "plan": _plan,
    "stage": _stage,
    "publish": _publish,
    "done": _done,
    "ack, then fail": _ack_then_fail,
}


# -- acks ---------------------------------------------------------------------------------------------------------


def acked(state: State) -> State:
    """Return the state with the source acked at the stored position, where the file still names that unit."""
    source = state.source
    if source.unit != state.file.unit or source.unit in state.gone:
        return state
    position = unit_position(state, source.unit, source.position) if source.logged else source.position
    if position is None:
        return state
    known = next((place for place in state.acked if place.unit == source.unit), Place(source.unit, 0, 0))
    new = Place(source.unit, source.generation, position)
    # a source ignores a lower ack, and one of an older generation
    if (new.generation, new.position) <= (known.generation, known.position):
        return state
    others = tuple(place for place in state.acked if place.unit != source.unit)
    return state._replace(acked=tuple(sorted((*others, new))))
