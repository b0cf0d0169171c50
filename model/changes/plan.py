"""Line 1: which step comes next."""

from __future__ import annotations

from model.changes.state import LATE, Config, State, Step

Moves = list[tuple[str, State]]


def plan(config: Config, state: State) -> Moves:
    """Return every step that may be planned: a replay that was asked for, a catch-up, or what is new."""
    steps = _replay(state) or _catch_up(config, state) or _data(config, state)
    return [(f"plan {name_of(step)}", state._replace(step=step, replaying=False)) for step in steps]


def name_of(step: Step) -> str:
    """Return what a trace calls a step."""
    if step.kind == "replay":
        return f"replay of letters {step.letters}"
    where = "log" if step.logged else step.unit
    return f"{step.kind} {where}[{step.start},{step.end})" + (f" of {step.unit}{step.reach}" if step.reach else "")


def _replay(state: State) -> list[Step]:
    numbers = tuple(i for i, letter in enumerate(state.letters) if letter.is_open)
    if not state.replaying or not numbers:
        return []
    return [_step(state, "replay", state.replays, numbers[0], numbers[-1] + 1)._replace(letters=numbers)]


def _catch_up(config: Config, state: State) -> list[Step]:
    late = state.catch_up
    if late is None or late.position >= late.upto:
        return []
    # pinned: a step that is staged again must not take its own letters for earlier ones
    lettered = tuple(sorted({letter.record for letter in state.letters}))
    ends = _ends(config, late.position, late.upto)
    steps = (_step(state, "catch-up", late.generation, late.position, end) for end in ends)
    return [step._replace(lettered=lettered) for step in steps]


def _data(config: Config, state: State) -> list[Step]:
    source, size = state.source, config.units[state.source.unit]
    if source.logged and source.position < len(state.log):
        ends = _ends(config, source.position, len(state.log))
        return [_step(state, "data", source.generation, source.position, end) for end in ends]
    if source.unit in state.gone:
        return []
    if not source.logged:
        ends = _ends(config, source.position, size)
        return [_step(state, "data", source.generation, source.position, end) for end in ends]
    steps: list[Step] = []
    for end in _ends(config, state.log_position, size):
        count = end - state.log_position
        step = _step(state, "data", source.generation, source.position, source.position + count)
        steps.append(step._replace(reach=(state.log_position, end)))
    return steps


def _step(state: State, kind: str, generation: int, start: int, end: int) -> Step:
    consumers = (LATE,) if kind == "catch-up" else tuple(sorted(state.consumers))
    return Step(kind, state.source.unit, state.source.logged, generation, start, end, consumers)


def _ends(config: Config, start: int, limit: int) -> list[int]:
    last = min(start + config.batch, limit)
    if last <= start:
        return []
    return list(range(start + 1, last + 1)) if config.sizes else [last]
