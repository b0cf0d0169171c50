"""Stage, resolve and decide: functions of records and verdicts."""

from __future__ import annotations

from typing import Any

from model.protocol.rules import Rule
from model.protocol.state import DONE, Config, Ledger, Process, Ranges, State, Step, get


def records_of(state: State, ranges: Ranges) -> list[int]:
    """Return the records of a step's ranges."""
    return [
        state.generation * 100 + source * 10 + i
        for source, (start, end) in enumerate(ranges)
        for i in range(start + 1, end + 1)
    ]


def staged(config: Config, state: State, step: Step) -> Ledger | None:
    """Return the ledger of staging a step now; None where its range is gone."""
    if state.gone and any(start < end for start, end in step.ranges):
        return None
    verdicts = config.verdict[state.version]
    return tuple((record, verdicts[record % 100]) for record in records_of(state, step.ranges))


def wanted_by(verdict: str, place: int, is_queue: bool) -> bool:
    """Return whether a consumer gets a record of this verdict."""
    if is_queue:
        return verdict not in "df"
    return verdict == "d" or (verdict not in "fn" and "ab"[place] not in verdict)


def decide(config: Config, ledger: Ledger) -> tuple[tuple[int, ...], ...]:
    """Return the records of each consumer."""
    last = len(config.kinds) - 1
    return tuple(
        tuple(record for record, verdict in ledger if wanted_by(verdict, place, place == last))
        for place in range(last + 1)
    )


def resolve(config: Config, window: tuple[int, ...], ledger: Ledger) -> tuple[tuple[int, ...], int | None, list[int]]:
    """Take nacks through the window in order: the window after, the record that exceeds it, and all entries."""
    entries: list[int] = []
    for record, verdict in ledger:
        nacked = int(verdict not in "df")
        after = (*window, nacked)[-config.window :] if config.window else ()
        if nacked and config.window and sum(after) > config.threshold:
            return window, record, entries
        window = after
        entries.append(nacked)
    return window, None, entries


def window_with_nack(config: Config, state: State) -> tuple[int, ...] | None:
    """Return the window after one more nack; None where it does not accept it."""
    if not config.window:
        return ()
    window = (*state.window, 1)[-config.window :]
    return window if sum(window) <= config.threshold else None


def cut_before(ranges: Ranges, record: int) -> Ranges:
    """Return a step's ranges up to a record."""
    source, place = record % 100 // 10, record % 10

    def end(number: int, start: int, whole: int) -> int:
        return whole if number < source else place - 1 if number == source else start

    return tuple((start, end(number, start, whole)) for number, (start, whole) in enumerate(ranges))


def delivery_hash(config: Config, step: Step, consumer: int, skip: int, take: int) -> tuple[Any, ...]:
    """Return the name of a delivery or of a part of it."""
    generation = next((record // 100 for rows in step.decision for record in rows), 0)
    return (generation if config.has(Rule.GENERATION) else 0, step.ranges, consumer, skip, take)


def set_hash(config: Config, step: Step, consumer: int, places: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the name of a child that holds these records: a range, and what it leaves out of it."""
    take = places[-1] + 1 - places[0]
    left_out = tuple(place for place in range(places[0], places[0] + take) if place not in places)
    name = delivery_hash(config, step, consumer, places[0], take)
    # a child that holds all of a delivery is not the delivery
    is_whole = take == len(step.decision[consumer]) > 1
    return (*name, left_out if config.has(Rule.BATCH_NAME) else ()) if left_out or is_whole else name


def whole_hash(config: Config, step: Step, consumer: int) -> tuple[Any, ...]:
    """Return the name of a whole delivery."""
    return delivery_hash(config, step, consumer, 0, len(step.decision[consumer]))


def token_of(config: Config, process: Process, step: Step) -> tuple[Any, int]:
    """Return the name under which a process stages a step."""
    return (process.epoch if config.has(Rule.TOKEN) else "any", step.number)


def is_staged(config: Config, state: State, step: Step) -> bool:
    """Return whether the staging of a prepared step is there."""
    if not config.has(Rule.TOKEN) and any(token[1] == step.number for token, _ in state.staging):
        return True
    return any(token == step.token for token, _ in state.staging)


def staged_decision(config: Config, state: State, step: Step) -> tuple[tuple[int, ...], ...]:
    """Return what lies under the prepared names now: without tokens a zombie may have written there."""
    if not config.has(Rule.TOKEN):
        for token, ledger in state.staging:
            if token == ("any", step.number):
                return decide(config, ledger)
    return step.decision


def found(config: Config, state: State, step: Step, consumer: int, name: tuple[Any, ...]) -> Any:
    """Return what a destination knows under a hash."""
    kind, held = config.kinds[consumer], state.consumers[consumer]
    if kind == "pg":
        return get(held[0], name)
    return get(held, (step.number, name)) if kind == "folder" else None


def holds(config: Config, state: State, step: Step, consumer: int) -> bool:
    """Return whether a destination has a whole delivery."""
    known = found(config, state, step, consumer, whole_hash(config, step, consumer))
    return known is not None and known != "split"


def is_published(step: Step) -> bool:
    """Return whether everything of a step is published and marked."""
    parts = (part == DONE or (isinstance(part, tuple) and "todo" not in part) for part in step.progress)
    return all(parts) and all(letter.done for letter in step.letters)
