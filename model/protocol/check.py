"""The invariants."""

from __future__ import annotations

from model.protocol.decisions import wanted_by
from model.protocol.rules import Rule
from model.protocol.state import HOLE, TORN, Config, State, budget, content_of

_OPERATOR = "fatal:operator"


def violation(config: Config, state: State, final: bool) -> str | None:
    """Return the first invariant that the state breaks."""
    if state.broken:
        return state.broken
    if any(acked > position for acked, position in zip(state.acked, state.positions, strict=True)):
        return "source acked ahead of the stored position"
    contents = [content_of(kind, held) for kind, held in zip(config.kinds, state.consumers, strict=True)]
    for place, content in enumerate(contents):
        if broken := _content(config, state, place, content):
            return broken
    if config.window and _exceeded(config, state):
        return "threshold not obeyed over the history"
    return _final(config, state, contents) if final else None


def outcome(state: State) -> str:
    """Return the status of a final state."""
    return str(state.status)


def _content(config: Config, state: State, place: int, content: list[int]) -> str | None:
    is_queue = place == len(config.kinds) - 1
    outcomes = dict(state.outcomes)
    counts: dict[int, int] = {}
    last: dict[int, int] = {}
    for record in content:
        if record <= 0:
            continue
        counts[record] = counts.get(record, 0) + 1
        if config.strategy != "at-least-once" and counts[record] > 1:
            return f"record {record} twice in {'dead letters' if is_queue else 'destination'} {place}"
        if config.exactly and not is_queue:
            source = record % 100 // 10
            if last.get(source, 0) > record:
                return f"record {record} out of order in destination {place}"
            last[source] = record
        verdict = outcomes.get(record)
        if verdict is None:
            return f"record {record} published in {place} before any decision"
        if config.exactly and not wanted_by(verdict, place, is_queue):
            return f"record {record} in consumer {place} but decided '{verdict}'"
    return None if config.once else _acked_and_missing(state, place, is_queue, counts)


def _acked_and_missing(state: State, place: int, is_queue: bool, counts: dict[int, int]) -> str | None:
    outcomes = dict(state.outcomes)
    for source, acked in enumerate(state.acked):
        for i in range(1, acked + 1):
            record = state.generation * 100 + source * 10 + i
            verdict = outcomes.get(record)
            if verdict is None:
                return f"record {record} acked without a decision"
            if wanted_by(verdict, place, is_queue) and not counts.get(record):
                return f"record {record} acked but missing in consumer {place} (decided '{verdict}')"
    return None


def _exceeded(config: Config, state: State) -> bool:
    nacks, size = state.nacks, config.window
    return any(nacked and sum(nacks[max(0, i + 1 - size) : i + 1]) > config.threshold for i, nacked in enumerate(nacks))


def _final(config: Config, state: State, contents: list[list[int]]) -> str | None:
    status = state.status
    if status is None:
        return "deadlock: no action enabled, no cause named"
    if state.acked != state.positions and not status.startswith(_OPERATOR):
        return f"final ({status}) with source not acked at the stored position"
    if status.startswith(_OPERATOR) and _is_needless(config, state):
        return f"needless fatal stop: {status}"
    if status == "idle":
        return _idle(config, state, contents)
    return "stopped with open steps" if status == "stopped" and state.steps else None


def _is_needless(config: Config, state: State) -> bool:
    faultless = all(budget(state, fault) == config.allowed(fault) for fault in ("lose", "gone"))
    return faultless and config.has(Rule.DIGEST)


def _idle(config: Config, state: State, contents: list[list[int]]) -> str | None:
    if state.steps or state.positions != config.records:
        return "idle with open steps or unread records"
    for content in contents:
        if TORN not in content and HOLE not in content:
            continue
        # at-most-once may leave half a record at the end, never in front of a whole one
        hides = TORN in content and any(record > 0 for record in content[content.index(TORN) :])
        if not config.once or hides:
            return "idle with a torn record or a hole in a file"
    return None
