"""The invariants."""

from __future__ import annotations

from collections import Counter

from model.changes.rules import Rule
from model.changes.state import CONSUMERS, OUT, QUEUE, Config, State, budget, published


def violation(config: Config, state: State, final: bool) -> str | None:
    """Return the first invariant that the state breaks and the configuration does not ignore."""
    for check in (_transition, _twice, _order, _acked):
        if (found := check(state)) and not found.startswith(config.ignored or "\0"):
            return found
    if not final:
        return None
    found = _idle(config, state) if state.status == "idle" else _failed(config, state)
    return found if found and not found.startswith(config.ignored or "\0") else None


def outcome(state: State) -> str:
    """Return the status of a final state."""
    return state.status


def _transition(state: State) -> str:
    return state.broken


def _twice(state: State) -> str:
    for consumer in CONSUMERS:
        counts = Counter(record for record, _ in published(state, consumer).rows)
        for record, count in counts.items():
            if count > 1:
                return f"twice: {record} at {consumer}"
    return ""


def _order(state: State) -> str:
    for consumer in CONSUMERS:
        last: dict[str, str] = {}
        for record, kind in published(state, consumer).rows:
            # dead letters need not keep the order of their neighbours
            if kind == "replay" or consumer == QUEUE:
                continue
            if last.get(record[0], "") > record:
                return f"order: {record} after {last[record[0]]} at {consumer}"
            last[record[0]] = record
    return ""


def _acked(state: State) -> str:
    """A source is acked only as far as each of its records is delivered, filtered or a dead letter."""
    for place in state.acked:
        for i in range(place.position):
            if not _is_settled(state, OUT, f"{place.unit}{i}"):
                return f"acked but lost: {place.unit}{i} at {OUT}"
    return ""


def _is_settled(state: State, consumer: str, record: str) -> bool:
    if any(row[0] == record for row in published(state, consumer).rows) or (consumer, record) in state.dropped:
        return True
    return any(
        letter.is_open and letter.record == record and letter.missed in ("all", consumer) for letter in state.letters
    )


def _missing(state: State) -> str:
    for consumer, record in sorted(state.due):
        if record and not _is_settled(state, consumer, record):
            return f"lost: {record} at {consumer}"
    for place in state.places:
        for i in range(place.position):
            if not _is_settled(state, OUT, f"{place.unit}{i}"):
                return f"lost: {place.unit}{i} at {OUT}"
    return ""


# -- final states -------------------------------------------------------------------------------------------------


def _idle(config: Config, state: State) -> str:
    source = state.source
    unread = config.units[source.unit] - (state.log_position if source.logged else source.position)
    if state.step is not None or unread or (source.logged and source.position != len(state.log)):
        return "idle with work left"
    if state.catch_up is not None and state.catch_up.position < state.catch_up.upto:
        return "idle before a destination caught up"
    for i in range(config.units[source.unit]):
        if not _is_settled(state, OUT, f"{source.unit}{i}"):
            return f"lost: {source.unit}{i} at {OUT}"
    if found := _missing(state):
        return found
    acked = {place.unit: place.position for place in state.acked}
    if acked.get(source.unit, 0) != config.units[source.unit]:
        return "idle, but the source is not acked at the stored position"
    return ""


def _failed(config: Config, state: State) -> str:
    """A run may fail only for what the outside did to it, and with nothing left that it could have finished."""
    status, step = state.status.removeprefix("failed: "), state.step
    refused = not config.has(Rule.FINISH_FIRST) and status in ("reading changed", "source changed")
    if refused:
        return ""
    if step is not None and step.is_prepared and step.staged:
        return f"stuck: {status}, while a prepared step has its staging"
    return {
        "source gone": _needless(state.file.unit in state.gone, status),
        "source failed": _no_progress(config, state),
        "gap in the log": _needless(budget(state, "gap") < config.budget.get("gap", 0), status),
        "staging lost and cannot be rebuilt": _needless(_cannot_rebuild(state), status),
        "log not read up": _needless(state.source.logged and not state.file.logged, status),
    }.get(status, f"unexpected failure: {status}")


def _needless(has_cause: bool, status: str) -> str:
    return "" if has_cause else f"stuck: {status}, without a cause"


def _cannot_rebuild(state: State) -> bool:
    step = state.step
    if step is None or step.staged:
        return False
    return step.code != state.file.code or step.unit != state.file.unit or step.unit in state.gone or _has_gap(state)


def _has_gap(state: State) -> bool:
    step = state.step
    return step is not None and step.logged and not all(entry.present for entry in state.log[step.start : step.end])


def _no_progress(config: Config, state: State) -> str:
    """Everything before the failure is delivered and acked."""
    unit = state.file.unit
    acked = {place.unit: place.position for place in state.acked}
    if acked.get(unit, 0) < config.unreadable.get(unit, 0):
        return "no progress: records before the failure are not delivered"
    return ""
