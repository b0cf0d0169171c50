"""``positions rewind --into``: send one destination a range of the log again; nothing else moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.engine.log_source import catch_up_id
from conduit_dagster.engine.open_work import with_open_catch_ups
from conduit_dagster.engine.operate.letters import finish_open_steps
from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, drop_planned
from conduit_dagster.engine.operate.rewind import RewindTarget, offset_in, only_target, require_no_step
from conduit_dagster.engine.operate.source_positions import LogView, joined_of, log_of, no_log
from conduit_dagster.engine.report import RunProgress
from conduit_dagster.state.catch_ups import CatchUp, CatchUps
from conduit_dagster.state.dead_letters import forget_missed_between
from conduit_dagster.state.overview import consumer_rows
from conduit_dagster.state.pipeline_state import PipelineState, SourceState

Facts = dict[str, Any]


class Resent(NamedTuple):
    """Range to send again to one destination."""

    destination: str
    start: RewindTarget
    """Start of the range: the start of the log, an offset or a time."""
    end: RewindTarget | None = None
    """First record not to send again; None means up to the source's current position."""


def resent(into: str | None, start: RewindTarget, ends: Sequence[RewindTarget], choices: str) -> Resent | None:
    """Return the range to send again to one destination; None if a rewind is for all destinations.

    ``ends``: the ends that were given; ``choices``: the names of the options. Raises ``FatalError`` (``usage.*``).
    """
    if into is None and ends:
        raise refused(
            "usage.until",
            "only one destination can be sent a range",
            "name it: --into DESTINATION, in a job into: DESTINATION",
        )
    end = only_target(ends, f"give one of {choices}") if ends else None
    return None if into is None else Resent(into, start, end)


def send_again(
    lock: PipelineLock,
    database: sa.Engine,
    source: str | None,
    wanted: Resent,
    force: bool = False,
    dry_run: bool = False,
) -> Facts:
    """Have the next run send one destination a range of a source's log again, with new delivery hashes.

    The range includes records that the destination did not accept the first time: it is removed from the destinations
    of their open dead letters, so that a replay does not send them twice. ``force`` discards the rest of an earlier
    range. Raises ``FatalError`` (``positions.*``, ``log.*``, ``usage.*``).
    """
    [facts] = send_all_again(lock, database, [(source, wanted)], force, dry_run)
    return facts


def send_all_again(
    lock: PipelineLock,
    database: sa.Engine,
    every: Sequence[tuple[str | None, Resent]],
    force: bool = False,
    dry_run: bool = False,
) -> list[Facts]:
    """Do so for several sources and destinations, all or nothing: if one is refused, none is changed."""
    if not dry_run:
        lock.loop()  # indexes the dead letters of an at-most-once step that is done: they are affected too
    state = lock.store.load()
    require_no_step(lock, state)
    found = [_found(lock, database, state, source, wanted, force) for source, wanted in every]
    changes = [one for one in found if one.first < one.upto or (force and _is_pending(state, one.name))]
    generations = {} if dry_run else _apply(lock, changes)
    return [
        {
            "pipeline": lock.id,
            "source": one.source,
            "destination": one.destination,
            "changed": one in changes,
            "first": one.first,
            "upto": one.upto,
            "records": max(0, one.upto - one.first),
            "generation": generations.get(one.name),
        }
        for one in found
    ]


def deliver_missed(lock: PipelineLock, go_on: Callable[[], bool]) -> dict[str, int]:
    """Deliver at once the ranges that destinations are sent again; return the number of records by destination.

    An open step is finished first, and nothing new is read. ``go_on`` is called between steps; the next run does the
    rest, as after a kill. Raises any error that a run may fail with.
    """
    lock = lock.of(with_open_catch_ups(lock.bound, lock.store.load()))
    finish_open_steps(lock)
    progress = RunProgress()
    loop = lock.loop(progress.add)
    while go_on() and (plan := loop.planner.plan_missed()) is not None:
        loop.execute(plan)
    return progress.delivered


def _found(
    lock: PipelineLock, database: sa.Engine, state: PipelineState, source: str | None, wanted: Resent, force: bool
) -> CatchUp:
    log = _log(lock, database, state, source)
    _require_able(lock)
    destination = _destination(lock, database, wanted.destination)
    name = catch_up_id(log.source, destination)
    if not force and _is_pending(state, name):
        raise _pending(state.sources[name], destination)
    stands: int = state.sources[log.source].position
    first = offset_in(log, wanted.start, lock)
    upto = stands if wanted.end is None else min(stands, offset_in(log, wanted.end, lock))
    return CatchUp(name, log.source, destination, min(first, stands), max(first, upto))


def _log(lock: PipelineLock, database: sa.Engine, state: PipelineState, source: str | None) -> LogView:
    """Return the log. The pipeline's file must still have its source: otherwise nothing would ever send the range."""
    if joined_of(state) or lock.pipeline.program.fan_in == "join":
        raise refused(
            "positions.joined",
            "the sources of a join are read together: one destination can't be sent them again by itself",
            "rewind the join, which all destinations are sent",
        )
    if lock.pipeline.program.log != "records":
        raise no_log(lock.id)
    known = [node.id for node in lock.pipeline.sources]
    return log_of(database, lock.id, lock.options.log_url, chosen("source", source, known, lock.id))


def _require_able(lock: PipelineLock) -> None:
    if lock.pipeline.stateful:
        nodes = ", ".join(lock.pipeline.stateful)
        raise refused(
            "positions.remembering",
            f"{nodes} remembers the records that it has seen: it would drop them as duplicates",
            "rewind the source for all destinations: what was remembered is forgotten then",
        )


def _destination(lock: PipelineLock, database: sa.Engine, name: str) -> str:
    chosen("destination", name, [node.id for node in lock.pipeline.outputs], lock.id)
    if name not in {row["id"] for row in consumer_rows(database, lock.id)}:
        raise refused(
            "positions.new_destination",
            f"{name} was never sent anything: it is new",
            "run the pipeline once; with start-from: log it gets what the log holds",
        )
    return name


def _is_pending(state: PipelineState, name: str) -> bool:
    last = state.sources.get(name)
    return last is not None and bool(last.late) and last.position < last.unit["upto"]


def _pending(last: SourceState, destination: str) -> Exception:
    return refused(
        "positions.catching_up",
        f"{destination} is still sent offsets {last.position} to {last.unit['upto'] - 1} again",
        "let it end: conduit-dagster run --once; --force (in a job force: true) gives up what is left, and takes this",
    )


def _apply(lock: PipelineLock, every: Sequence[CatchUp]) -> dict[str, int]:
    """Register the ranges in one transaction; return their generations by source id."""

    def work(connection: sa.Connection) -> dict[str, int]:
        drop_planned(connection, lock.id)
        catch_ups, found = CatchUps(connection, lock.id), dict[str, int]()
        for one in every:
            offsets = range(one.first, one.upto)
            forget_missed_between(connection, lock.id, one.destination, (one.source, one.name), offsets)
            found[one.name] = catch_ups.send_again(one, lock.by)
        return found

    return lock.store.transactions.run(work) if every else {}
