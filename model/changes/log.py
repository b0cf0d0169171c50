"""The commit log: which entries are whole, what compaction takes, what a reader gets."""

from __future__ import annotations

from model.changes.rules import Rule
from model.changes.state import OUT, Config, Entry, State


class GapError(Exception):
    """A reader found entries of its range missing."""


def append(config: Config, state: State, unit: str, start: int, end: int) -> State:
    """Return the state with records of a unit logged."""
    records = config.records(unit, start, end)
    entries = tuple(Entry(record, unit, start + i + 1, True) for i, record in enumerate(records))
    return state._replace(log=state.log + entries, log_position=end)


def padded(state: State) -> tuple[Entry, ...]:
    """Return the log of a source that was read without it: what it read before has no entries."""
    return state.log + (Entry(),) * (state.source.records - len(state.log))


def read(config: Config, state: State, start: int, end: int) -> tuple[str, ...]:
    """Return the records of a range of offsets. Raises ``GapError`` where the protocol refuses a gap."""
    entries = state.log[start:end]
    # a reader of the log refuses a gap: the missing entries may have been promised to it
    if config.has(Rule.REFUSE_GAP) and not all(entry.present for entry in entries):
        raise GapError
    return tuple(entry.record for entry in entries if entry.present)


def whole_from(config: Config, state: State) -> int:
    """Return the first offset from which on no segment misses an entry."""
    first = len(state.log)
    for start in reversed(range(0, len(state.log), config.segment)):
        if not all(entry.present for entry in state.log[start : start + config.segment]):
            break
        first = start
    return first


def handled_by_all(config: Config, state: State) -> int:
    """Return the offset up to which compaction may take entries."""
    offsets = dict(state.offsets)
    # nothing is compacted while a consumer has handled nothing
    floor = min(offsets.get(consumer, 0) for consumer in state.consumers | {OUT})
    catch_up = state.catch_up
    # an entry that a destination was promised stays until it has been read
    if config.has(Rule.PROMISE_HOLDS) and catch_up is not None and catch_up.position < catch_up.upto:
        floor = min(floor, catch_up.position)
    return floor


def compacted(config: Config, state: State) -> State:
    """Return the state with every closed segment compacted: the last entry of each stays."""
    floor, size = handled_by_all(config, state), config.segment
    closed = (len(state.log) - 1) // size * size if state.log else 0

    def stays(offset: int) -> bool:
        return offset >= closed or offset >= floor or offset % size == size - 1

    entries = (entry if stays(i) else entry._replace(present=False) for i, entry in enumerate(state.log))
    return state._replace(log=tuple(entries))


def without(state: State, offset: int) -> State:
    """Return the state with an entry lost."""
    entries = list(state.log)
    entries[offset] = entries[offset]._replace(present=False)
    return state._replace(log=tuple(entries))


def unit_position(state: State, unit: str, offset: int) -> int | None:
    """Return the position of a unit up to which everything before ``offset`` was handled."""
    # the log's own position also counts what was read before there was a log
    if offset >= len(state.log):
        return state.log_position
    return max((entry.upto for entry in state.log[:offset] if entry.unit == unit), default=None)
