"""Offsets and lag of a pipeline's consumers, and of other pipelines that read its logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.delivery_progress import Shipment, past_marked
from conduit_dagster.engine.offset_updates import offset_of
from conduit_dagster.engine.operate.open_delivery import prepared_step
from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.engine.operate.source_positions import handled_of, joined_of, logs_of, stored
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import staged_records
from conduit_dagster.state.database import reading
from conduit_dagster.state.delivery_store import EVERYTHING
from conduit_dagster.state.lease import Lease, LeaseHeldByCommand, Transactions, acquire
from conduit_dagster.state.log_store import LogStore
from conduit_dagster.state.overview import consumer_rows, offset_rows, pipeline_rows
from conduit_dagster.state.pipeline_state import OpenStep, PipelineState, SourceState
from conduit_dagster.state.readers import ReadingSource, drop, readers_of
from conduit_dagster.state.steps import Decision, DeliveryChild, DeliveryProgress, StagedDelivery

Facts = dict[str, Any]


def consumer_facts(database: sa.Engine, pipeline: str, bound: BoundPipeline | None, base: str) -> list[Facts]:
    """Return a row per consumer with its offset and lag in each source and its open delivery, then the readers."""
    state = stored(database, pipeline)
    if state is None:
        return []
    ends, offsets = _ends(database, pipeline, state, base), offset_rows(database, pipeline)
    error = pipeline_rows(database)[pipeline]["error"]
    facts: list[Facts] = []
    for row in consumer_rows(database, pipeline):
        name = row["id"]
        mine = {o["source"]: o["offset"] for o in offsets if o["consumer"] == name and o["namespace"] == EVERYTHING}
        stands = error if error and error.get("node") == node_id(pipeline, name) else None
        sources = [_in_source(source, mine.get(source), end) for source, end in ends.items()]
        for late in (one for one in state.sources.values() if one.late == name):
            _missing(sources, late)
        facts.append({**row, "sources": sources, "open": _open(state, name, bound), "error": stands})
    return [*facts, *_reader_facts(database, pipeline, ends)]


def open_deliveries(database: sa.Engine, pipeline: str) -> dict[str, Facts]:
    """Return, by consumer, what is handled and delivered of the prepared step's delivery while that is not done.

    Once it is done the consumer's own counter has it.
    """
    state = stored(database, pipeline)
    found = None if state is None else prepared_step(state)
    if found is None:
        return {}
    step, decision = found
    waiting = (one.consumer for one in decision.deliveries if one.consumer not in step.delivered)
    known = {name: step.progress.get(name, DeliveryProgress()) for name in waiting}
    return {
        name: {"step": step.plan.step, "handled": one.handled, "delivered": one.handled - one.refused}
        for name, one in known.items()
    }


def _in_source(source: str, offset: int | None, end: tuple[int, int]) -> Facts:
    handled, last = end
    # a consumer added later has no offset for records that were handled before
    return {"id": source, "offset": offset, "behind": max(0, last - max(handled, -1 if offset is None else offset))}


def _missing(sources: list[Facts], late: SourceState) -> None:
    """Increase the lag of a destination that is catching up by its backlog."""
    for facts in sources:
        if facts["id"] == late.unit["source"]:
            facts["behind"] += max(0, late.unit["upto"] - late.position)


def _ends(database: sa.Engine, pipeline: str, state: PipelineState, base: str) -> dict[str, tuple[int, int]]:
    """Return, per source, the last offset that every consumer has handled and the last known one."""
    joined = joined_of(state)
    logged = {view.source: view.state().next_offset - 1 for view in logs_of(database, pipeline, base)}
    found = prepared_step(state)
    ends: dict[str, tuple[int, int]] = {}
    for name, one in state.sources.items():
        if one.late or one.unit.get("plugin") == "join":
            continue
        handled = (handled_of(state, name) if name in logged or name in joined else one.records) - 1
        ends[name] = (handled, max(handled, logged.get(name, -1), _last_of(found, name)))
    return ends


def _last_of(found: tuple[OpenStep, Decision] | None, source: str) -> int:
    spans = [] if found is None else [span for span in found[0].plan.ranges if span.source == source]
    if found is None or not spans:
        return -1
    count = found[1].sources.get(source)
    return spans[0].offset + (count.read if count else 0) - 1


def _open(state: PipelineState, consumer: str, bound: BoundPipeline | None) -> Facts | None:
    found = prepared_step(state)
    if found is None:
        return None
    step, decision = found
    staged = next((d for d in decision.deliveries if d.consumer == consumer and d.parts), None)
    if staged is None or consumer in step.delivered:
        return None
    progress = step.progress.get(consumer, DeliveryProgress())
    return {
        "step": step.plan.step,
        "state": "split" if progress.split else "open",
        "handled": progress.handled,
        "records": staged.records,
        "marked": len(set(progress.marked).difference(*(child.without for child in progress.pending))),
        "next": _next(step, decision, staged, progress, bound),
    }


def _next(
    step: OpenStep, decision: Decision, staged: StagedDelivery, progress: DeliveryProgress, bound: BoundPipeline | None
) -> Facts | None:
    """Return the next record of the delivery; None if all are handled, or if its staging can't provide it."""
    known = bound.compiled.consumers if bound else {}
    destination = known.get(staged.consumer)
    if destination is None or destination.placement == "staged" or past_marked(progress).handled >= staged.records:
        return None
    one = Shipment(step.plan, decision, staged, progress).child(
        staged.hash, DeliveryChild(past_marked(progress).handled, 1)
    )
    try:
        record = next(staged_records(one), None)
    except OSError:
        return None
    if record is None:
        return None
    return {"source": record.source, "offset": offset_of(step.plan, record.source, record.ordinal)}


def namespace_facts(database: sa.Engine, pipeline: str, consumer: str) -> list[Facts]:
    """Return a consumer's offsets by source and namespace; ``*`` is the whole source."""
    rows = [row for row in offset_rows(database, pipeline) if row["consumer"] == consumer]
    own = [{key: row[key] for key in ("source", "namespace", "offset", "at_ns")} for row in rows]
    return own or _reader_offsets(database, pipeline, consumer)


def readers(database: sa.Engine, pipeline: str) -> list[ReadingSource]:
    """Return the readers of all its logs."""
    with reading(database) as connection:
        return readers_of(connection, pipeline)


def _reader_facts(database: sa.Engine, pipeline: str, ends: Mapping[str, tuple[int, int]]) -> list[Facts]:
    """Return a row per reader, like those of consumers. ``ends``: the last known offset per source, as second item."""
    return [
        {
            "id": reader.name,
            "kind": "reader",
            "delivered": None,
            "step": None,
            "sources": [_read_in_source(reader, ends)],
            "open": None,
            "error": None,
        }
        for reader in readers(database, pipeline)
    ]


def _read_in_source(reader: ReadingSource, ends: Mapping[str, tuple[int, int]]) -> Facts:
    offset, (_, last) = reader.offset - 1, ends.get(reader.of[1], (-1, -1))
    return {"id": reader.of[1], "offset": None if offset < 0 else offset, "behind": max(0, last - offset)}


def _reader_offsets(database: sa.Engine, pipeline: str, name: str) -> list[Facts]:
    """Return a reader's offset in the layout of a consumer's: readers have no offsets per namespace."""
    return [
        {"source": reader.of[1], "namespace": EVERYTHING, "offset": reader.offset - 1, "at_ns": None}
        for reader in readers(database, pipeline)
        if reader.name == name and reader.offset
    ]


def drop_reader(
    database: sa.Engine, pipeline: str, name: str, by: str, lease_seconds: float, dry_run: bool = False
) -> Facts:
    """Drop a reader: the log no longer waits for it, until its pipeline runs again.

    Raises ``FatalError`` (``usage.*``), ``TransientError`` (``lease.held`` if the reader's pipeline runs).
    """
    if not (known := {reader.name: reader for reader in readers(database, pipeline)}):
        raise _unknown(pipeline, f"no other pipeline reads a log of {pipeline}")
    reader = known[chosen("reader", name, known, pipeline)]
    if not dry_run:
        reader = _dropped(database, reader, by, lease_seconds)
    with reading(database) as connection:
        end = LogStore(pipeline).state(connection, reader.of[1]).next_offset
    facts = {"pipeline": pipeline, "reader": reader.name, "source": reader.of[1], "offset": reader.offset - 1}
    return {**facts, "unread": max(0, end - reader.offset)}


def _unknown(pipeline: str, message: str) -> ConduitError:
    return refused("usage.unknown_reader", message, f"conduit-dagster offsets list {pipeline} shows who reads it")


def _dropped(database: sa.Engine, reader: ReadingSource, by: str, lease_seconds: float) -> ReadingSource:
    lease = _lease(database, reader, lease_seconds)

    def work(connection: sa.Connection) -> ReadingSource:
        # its offset now that no other process can move it
        now = next((one for one in readers_of(connection, *reader.of) if one.name == reader.name), None)
        if now is None:
            raise _unknown(reader.of[0], f"{reader.name} was dropped or deleted meanwhile")
        drop(connection, now, by)
        return now

    try:
        return Transactions(database, lease).run(work)
    finally:
        lease.release()


def _lease(database: sa.Engine, reader: ReadingSource, lease_seconds: float) -> Lease:
    try:
        return acquire(database, reader.pipeline, lease_seconds, by_command=True)
    except ConduitError as error:
        if error.code == "lease.held" and not isinstance(error, LeaseHeldByCommand):
            error.fix = f"stop {reader.pipeline} first; one that runs on needs its place in the log"
        raise
