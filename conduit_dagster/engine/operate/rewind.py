"""``positions rewind``: continue a source from another position, under a new generation."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from conduit_dagster.engine.operate.open_delivery import prepared_step
from conduit_dagster.engine.operate.operator_errors import chosen, never_ran, refused
from conduit_dagster.engine.operate.pipeline_lock import (
    PipelineLock,
    drop_planned,
    forget_collections,
    move_source,
    put_offsets,
    renew_source,
)
from conduit_dagster.engine.operate.source_positions import LogView, beyond, joined_of, lag_of, logs_of
from conduit_dagster.engine.registering import unit_of
from conduit_dagster.recovery.classify import blame
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Limit, Source
from conduit_dagster.state.catch_ups import CatchUps
from conduit_dagster.state.connector_registrations import next_generation
from conduit_dagster.state.dead_letters import open_from
from conduit_dagster.state.history import record_event
from conduit_dagster.state.pipeline_state import PipelineState, SourceState

_LOOK = Limit(1, 65_536)


class Skipped(NamedTuple):
    """Records between two positions."""

    forward: bool | None
    """Whether records would be skipped; None if the source can't determine it."""
    amount: int | None = None
    """Amount skipped, if known."""
    unit: str = ""


def check_position(source: Source, name: str, known: Any, wanted: Any) -> None:
    """Raise ``FatalError`` (``positions.invalid``) for a position that this source finds invalid, if it can check.

    Its kind of JSON value is that of the known position, or of ``source.initial()``: a new version of the source may
    have positions of another kind. If both are null, the kind is not known.
    """
    try:
        initial = source.initial()
        kinds = list(dict.fromkeys(_shape(position) for position in (known, initial)))
        if _shape(wanted) not in kinds and (initial is not None or known is not None):
            raise ValueError(f"it is {_shape(wanted)}, not {' or '.join(kinds)}")
        source.place(wanted)
        source.latest(wanted, _LOOK, source.horizon())
        source.verify(initial, wanted)
    except TransientError as error:
        raise blame(error, name) from error  # it can't be reached, which proves nothing about the position
    except Exception as error:
        raise _invalid(name, str(error)) from error


def _shape(value: Any) -> str:
    shapes = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return shapes.get(type(value), "a number")


def _invalid(name: str, why: str) -> Exception:
    message = f"{name} has no such position: {why}"
    return refused(
        "positions.invalid", message, "give one that conduit-dagster positions show, log export, or a record, shows"
    )


def skipped_by(source: Source, known: Any, wanted: Any) -> Skipped:
    """Return the records skipped by continuing from ``wanted``."""
    if isinstance(known, int) and isinstance(wanted, int):
        return Skipped(wanted > known, max(0, wanted - known), "records")
    between = _records_between(source, known, wanted)
    if between is not None and (between or not _is_behind(source, known, wanted)):
        return Skipped(True if between else None, between, "records")
    return Skipped(None if between is None else False)


def _records_between(source: Source, known: Any, wanted: Any) -> int | None:
    """Return the number of records that would be skipped; None if the source can't count them."""
    try:
        counts = [split.records for split in source.split(known, wanted, 1)]
    except Exception:  # noqa: BLE001  # any plugin's code, on a range that it would never make
        return None
    return None if None in counts else sum(count or 0 for count in counts)


def _is_behind(source: Source, known: Any, wanted: Any) -> bool:
    """Return whether reading from ``wanted`` leaves at least as much to read as the current position."""
    before, after = lag_of(source, known), lag_of(source, wanted)
    return before is not None and after is not None and after >= before


@dataclass(frozen=True)
class RewindTarget:
    """Target of a rewind."""

    kind: Literal["start", "position", "offset", "time", "kept_time"]
    """``kept_time``: from the oldest remaining entry of that time on."""
    value: Any = None
    """A position, an offset, or a time in ns since the epoch."""


def only_target(targets: Sequence[RewindTarget], choices: str) -> RewindTarget:
    """Return the one target that was given. Raises ``FatalError`` (``usage.position``), whose fix is ``choices``."""
    if len(targets) != 1:
        raise refused("usage.position", "several places are named" if targets else "where to?", choices)
    return targets[0]


@dataclass(frozen=True)
class _Move:
    source: str
    state: SourceState
    position: Any
    records: int | None
    """Offset of the next record; None if offsets continue to count because the log holds positions only."""
    offsets: dict[str, int]
    """Next offset of each log whose consumers move as well."""
    skipped: Skipped


def rewind(
    lock: PipelineLock,
    database: sa.Engine,
    source: str | None,
    wish: RewindTarget,
    force: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Move a source's position; everything after it is read and delivered again, with new delivery hashes.

    A prepared step is never replanned, so the pipeline must have none. Moving forward, or in an unknown direction,
    requires ``force``. Raises ``FatalError`` (``positions.*``, ``log.*``).
    """
    state = lock.store.load()
    require_no_step(lock, state)
    members = joined_of(state)
    names = [name for name, one in state.sources.items() if name not in members and not one.late and not one.is_replay]
    if not names:
        raise never_ran(lock.id)  # a command that failed may have made its row
    name = chosen("source", members.get(source, source) if source else None, names, lock.id)
    move = _move(lock, database, state, name, wish)
    same = move.position == move.state.position
    if not same and move.skipped.forward is not False and not force:
        raise _forward(lock, move)
    generation = move.state.generation
    letters = 0 if same else _open_letters(lock, database, move)
    if not same:
        generation = next_generation(generation) if dry_run else _apply(lock, move)
    return {**_told(lock, move, same, generation), "open_letters": letters}


def require_no_step(lock: PipelineLock, state: PipelineState) -> None:
    """Raise ``FatalError`` (``positions.step_open``) if a step is prepared: it is never replanned."""
    found = prepared_step(state)
    if found is not None:
        raise refused(
            "positions.step_open",
            f"step {found[0].plan.step} of pipeline {lock.id} is prepared and not done: it is never planned anew",
            "run it once first: conduit-dagster run --once; conduit-dagster offsets list"
            f" {shlex.quote(lock.id)} shows what keeps failing, and offsets mark skips it; where that can't be, "
            "another id for its destination gives the step up: see docs/recovery.md",
        )


def _move(lock: PipelineLock, database: sa.Engine, state: PipelineState, name: str, wish: RewindTarget) -> _Move:
    one = state.sources[name]
    logs = {view.source: view for view in logs_of(database, lock.id, lock.options.log_url)}
    if one.unit.get("plugin") == "join":
        return _joined(lock, name, one, wish, logs)
    if name in logs:
        position = offset_in(logs[name], wish, lock)
        ahead = position - one.position
        return _Move(name, one, position, position, {name: position}, Skipped(ahead > 0, ahead, "records"))
    return _plain(lock, name, one, wish)


def offset_in(log: LogView, wish: RewindTarget, lock: PipelineLock) -> int:
    """Return the offset of the record that a target names. Raises ``FatalError`` (``positions.*``, ``log.*``)."""
    end, first = log.state().next_offset, log.whole_from()
    if wish.kind == "start":
        return first
    if wish.kind == "time":
        return log.offset_since(wish.value)
    if wish.kind == "kept_time":
        return log.offset_since(wish.value, as_kept=True)
    if not isinstance(wish.value, int) or isinstance(wish.value, bool) or wish.value < 0:
        message = f"{wish.value!r} is no position in the log of {log.source}: it is an offset, {first} to {end}"
        raise refused("positions.invalid", message, "give the offset of the first record that is to come again")
    if wish.value > end:
        raise beyond(log, wish.value)
    if wish.value < first:
        raise refused(
            "log.gone",
            f"the log of {log.source} holds every record from offset {first} on; of those before some are gone",
            f"conduit-dagster positions rewind {lock.id} {log.source} --to-offset {first}, or further on",
        )
    return wish.value


def _joined(lock: PipelineLock, name: str, one: SourceState, wish: RewindTarget, logs: dict[str, LogView]) -> _Move:
    members: dict[str, int] = one.position
    if wish.kind == "offset":
        message = f"{name} is a join: its position is an offset for each of {', '.join(members)}"
        raise refused("positions.joined", message, "give them all: --to '{\"SOURCE\": OFFSET, …}'")
    if wish.kind == "position" and (not isinstance(wish.value, dict) or wish.value.keys() != members.keys()):
        message = f"a position of {name} has an offset for each of {', '.join(members)}, and nothing else"
        raise refused("positions.invalid", message, f"conduit-dagster positions show {lock.id} shows one")
    position = {
        member: offset_in(
            logs[member], RewindTarget("offset", wish.value[member]) if wish.kind == "position" else wish, lock
        )
        for member in members
    }
    ahead = max(position[member] - members[member] for member in members)
    return _Move(name, one, position, None, position, Skipped(ahead > 0, max(0, ahead), "records"))


def _plain(lock: PipelineLock, name: str, one: SourceState, wish: RewindTarget) -> _Move:
    node = next((node for node in lock.pipeline.sources if node.id == name), None)
    if node is None or not unit_of(lock.pipeline, node).is_same_as(one.unit):
        message = f"{name} is not what it was when the pipeline ran last: its file has changed"
        raise refused("positions.source_changed", message, "run it once with the new file, then rewind")
    source = node.source
    if wish.kind == "start":
        return _Move(name, one, source.initial(), None, {}, Skipped(False))
    if wish.kind == "time":
        message = f"when the records of {name} were read is not known: they are not logged"
        fix = "rewind to a position or to the start; with delivery.log: records and log-retention times are known"
        raise refused("positions.no_times", message, fix)
    position = wish.value
    if wish.kind == "offset" and one.position != one.records:
        message = f"the positions of {name} are no offsets, and its records are not logged"
        fix = f"use --to with a position, as conduit-dagster positions show {lock.id} prints them, or --to-start"
        raise refused("positions.no_offsets", message, fix)
    check_position(source, name, one.position, position)
    return _Move(name, one, position, None, {}, skipped_by(source, one.position, position))


def _forward(lock: PipelineLock, move: _Move) -> Exception:
    what = move.skipped
    if what.forward is None:
        return refused(
            "positions.maybe_forward",
            f"{move.source} can't tell whether this position lies behind the one where it stands: records may be lost",
            "repeat it with --force where you know",
        )
    amount = f"{what.amount:,} {what.unit}" if what.amount else "records"
    return refused(
        "positions.forward",
        f"this is forward: {amount} of {move.source} would never be delivered",
        f"repeat it with --force to lose them; conduit-dagster positions show {lock.id} shows where it stands",
    )


def _open_letters(lock: PipelineLock, database: sa.Engine, move: _Move) -> int:
    """Return the number of open dead letters whose records may be read again: what fails then gets a new letter."""
    if move.skipped.forward:
        return 0
    # without a log, offsets count on, and don't tell which records come again
    first = 0 if move.records is None else move.records
    return open_from(database, lock.id, [move.source, *move.offsets], first)


def _apply(lock: PipelineLock, move: _Move) -> int:
    """Apply the move; return the source's new generation."""
    was, now = move.state.position, move.position

    def work(connection: sa.Connection) -> int:
        drop_planned(connection, lock.id)
        move_source(connection, lock.id, move.source, now, move.records)
        generation = renew_source(connection, lock.id, move.source)
        for log, offset in move.offsets.items():
            put_offsets(connection, lock.id, log, offset - 1)
            CatchUps(connection, lock.id).end_at(log, offset)
        if not move.skipped.forward:
            forget_collections(connection, lock.id, move.source, move.records or 0)
        detail = {"source": move.source, "was": was, "now": now, "generation": generation, "by": lock.by}
        record_event(connection, lock.id, "rewound", **detail)
        return generation

    return lock.store.transactions.run(work)


def _told(lock: PipelineLock, move: _Move, same: bool, generation: int) -> dict[str, Any]:
    return {
        "pipeline": lock.id,
        "source": move.source,
        "changed": not same,
        "was": move.state.position,
        "now": move.position,
        "generation": generation,
        "next_offset": move.state.records if move.records is None else move.records,
        "offsets": move.offsets,
        "skipped": move.skipped.amount if move.skipped.forward else None,
        "skipped_unit": move.skipped.unit,
    }
