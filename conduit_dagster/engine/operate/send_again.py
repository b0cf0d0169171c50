"""``positions rewind --into``: send one destination a range of the log again; the source and all others stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.engine.catch_up import with_open_catch_ups
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.log_source import catch_up_id
from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, drop_planned
from conduit_dagster.engine.operate.replay import finish_open_steps
from conduit_dagster.engine.operate.rewind import RewindTarget, offset_in, require_no_step
from conduit_dagster.engine.operate.source_positions import LogView, joined_of, log_of
from conduit_dagster.engine.report import StepReport
from conduit_dagster.state.catch_ups import CatchUp, CatchUps
from conduit_dagster.state.dead_letters import forget_missed_between
from conduit_dagster.state.overview import consumer_rows
from conduit_dagster.state.pipeline_state import PipelineState

Facts = dict[str, Any]


class Resent(NamedTuple):
    """What is to be sent again."""

    destination: str
    start: RewindTarget
    """From where: the start of the log, an offset or a time."""
    end: RewindTarget | None = None
    """The first record that is not sent again; None: up to where the source stands."""


def send_again(
    lock: PipelineLock, database: sa.Engine, source: str | None, wanted: Resent, dry_run: bool = False
) -> Facts:
    """Have the next run send one destination a range of a source's log again, with new delivery hashes.

    What the destination did not take the first time is among it: of open dead letters it is struck off, so that their
    replay does not send it those records once more. Raises ``FatalError`` (``positions.*``, ``log.*``, ``usage.*``).
    """
    state = lock.store.load()
    require_no_step(lock, state)
    found = _found(lock, database, state, source, wanted)
    generation = None
    if found.first < found.upto and not dry_run:
        generation = _apply(lock, found)
    return {
        "pipeline": lock.id,
        "source": found.source,
        "destination": found.destination,
        "changed": found.first < found.upto,
        "first": found.first,
        "upto": found.upto,
        "records": max(0, found.upto - found.first),
        "generation": generation,
    }


def deliver_missed(lock: PipelineLock) -> dict[str, int]:
    """Deliver at once what destinations are sent by themselves; return the number of records by destination.

    An open step is finished first, and nothing new is read. What a kill leaves undone, the next run does. Raises
    whatever a run would fail with.
    """
    lock = replace(lock, bound=with_open_catch_ups(lock.bound, lock.store.load()))
    finish_open_steps(lock)
    delivered: dict[str, int] = {}

    def report(step: StepReport) -> None:
        for name, records in step.delivered.items():
            if name != DEAD_LETTERS:
                delivered[name] = delivered.get(name, 0) + records

    loop = lock.loop(report)
    while (plan := loop.planner.plan_missed()) is not None:
        loop.execute(plan)
    return delivered


def _found(
    lock: PipelineLock, database: sa.Engine, state: PipelineState, source: str | None, wanted: Resent
) -> CatchUp:
    log = _log(lock, database, state, source)
    _require_able(lock)
    destination = _destination(lock, database, wanted.destination)
    name = catch_up_id(log.source, destination)
    _require_ended(lock, state, name, destination)
    stands: int = state.sources[log.source].position
    first = offset_in(log, wanted.start, lock)
    upto = stands if wanted.end is None else min(stands, offset_in(log, wanted.end, lock))
    return CatchUp(name, log.source, destination, first, upto)


def _log(lock: PipelineLock, database: sa.Engine, state: PipelineState, source: str | None) -> LogView:
    if joined_of(state):
        raise refused(
            "positions.joined",
            "the sources of a join are read together: one destination can't be sent them again by itself",
            "rewind the join, which all destinations are sent",
        )
    return log_of(database, lock.id, lock.options.log_url, source)


def _require_able(lock: PipelineLock) -> None:
    if lock.pipeline.remembering:
        nodes = ", ".join(lock.pipeline.remembering)
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


def _require_ended(lock: PipelineLock, state: PipelineState, name: str, destination: str) -> None:
    last = state.sources.get(name)
    if last is not None and last.late and last.position < last.unit["upto"]:
        raise refused(
            "positions.catching_up",
            f"{destination} is still sent offsets {last.position} to {last.unit['upto'] - 1} again",
            f"let it end: conduit-dagster run --once, or conduit-dagster pipelines start {lock.id}",
        )


def _apply(lock: PipelineLock, found: CatchUp) -> int:
    def work(connection: sa.Connection) -> int:
        drop_planned(connection, lock.id)
        offsets = range(found.first, found.upto)
        forget_missed_between(connection, lock.id, found.destination, (found.source, found.name), offsets)
        return CatchUps(connection, lock.id).send_again(found, lock.by)

    return lock.store.transactions.run(work)
