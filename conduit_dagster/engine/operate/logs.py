"""``log current``, ``oldest`` and ``show``, for human readers, and ``log compact``."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.commit_log.compaction import (
    Compacted,
    CompactionRule,
    Compactor,
    anything_handled,
    beyond_retention,
    closed_segments,
    highest_handled,
)
from conduit_dagster.commit_log.entries import Entry
from conduit_dagster.commit_log.segment_files import LogDamagedError
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.delivery_progress import as_delivery
from conduit_dagster.engine.offset_updates import offset_of
from conduit_dagster.engine.operate.consumer_lag import readers
from conduit_dagster.engine.operate.open_delivery import prepared_step
from conduit_dagster.engine.operate.operator_errors import chosen, never_ran, refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
from conduit_dagster.engine.operate.source_positions import LogView, beyond, handled_of, log_of, logs_of, no_log, stored
from conduit_dagster.engine.redaction import Redaction
from conduit_dagster.readable import exactly_when
from conduit_dagster.record import encode, mode_of
from conduit_dagster.sdk import staged_records
from conduit_dagster.state.catch_ups import held_from
from conduit_dagster.state.delivery_store import ByConsumer, offsets_of
from conduit_dagster.state.history import record_event, update_event
from conduit_dagster.state.log_store import LogPart, LogStore
from conduit_dagster.state.pipeline_state import OpenStep, PipelineState
from conduit_dagster.state.steps import StagedDelivery

Facts = dict[str, Any]


def log_facts(database: sa.Engine, pipeline: str, base: str, newest: bool) -> list[Facts]:
    """Return a row per log with its newest or oldest entry (None if empty) and its readers in other pipelines."""
    known = readers(database, pipeline)
    return [
        {
            **_log_facts(view, newest),
            "readers": [{"id": one.name, "offset": one.offset - 1} for one in known if one.of[1] == view.source],
        }
        for view in logs_of(database, pipeline, base)
    ]


def _log_facts(view: LogView, newest: bool) -> Facts:
    segments = view.segments()
    return {
        "source": view.source,
        "entry": _newest(view) if newest else _oldest(view),
        "next_offset": view.state().next_offset,
        "entries": sum(segment.entries for segment in segments),
        "segments": len(segments),
        "bytes": sum(segment.bytes for segment in segments),
    }


_SEEN = ("timestamp", "namespace")


def _oldest(view: LogView) -> Facts | None:
    parts = [part for part in view.parts() if part.entries]
    if not parts:
        return None
    batch = next(iter(view.blocks(parts[0].first, parts[0].next, _SEEN)))
    return _entry_facts(batch, 0, parts[0].segment)


def _newest(view: LogView) -> Facts | None:
    parts = [part for part in view.parts() if part.entries]
    if not parts:
        return None
    part = parts[-1]
    start = part.first if part.compacted else part.next - 1
    (last,) = deque(view.blocks(start, part.next, _SEEN), maxlen=1)
    return _entry_facts(last, len(last) - 1, part.segment)


def _entry_facts(batch: Any, row: int, segment: int) -> Facts:
    names = ("offset", "timestamp", "namespace")
    offset, time, namespace = (batch.column(name)[row].as_py() for name in names)
    return {"offset": offset, "time": exactly_when(time), "namespace": namespace, "segment": segment}


def open_ranges(state: PipelineState) -> list[Facts]:
    """Return the ranges of the steps that are not done: the contents of a log of positions."""
    return [
        {
            "step": step.plan.step,
            "state": "planned" if step.decision is None else "prepared",
            "source": span.source,
            "start": span.start,
            "end": span.end,
            "first_offset": span.offset,
            "records": None if step.decision is None else _count(step, span.source),
        }
        for step in state.open_steps
        for span in step.plan.ranges
    ]


def _count(step: OpenStep, source: str) -> int:
    count = step.decision.sources.get(source) if step.decision else None
    return count.read if count else 0


# -- entries ------------------------------------------------------------------------------------------------------


def shown(
    database: sa.Engine,
    pipeline: str,
    bound: BoundPipeline | None,
    base: str,
    first: int | None,
    last: int | None,
    source: str | None,
    limit: int,
    redact: Sequence[str] = (),
) -> Facts:
    """Return the entries from offset ``first`` to ``last``, both included; by default the unhandled ones.

    With a log of positions: the records of the open step, as staged for a destination that takes records. Values of
    the fields ``redact`` are masked. Raises ``FatalError`` (``log.*``, ``usage.*``).
    """
    state = stored(database, pipeline)
    if state is None:
        raise never_ran(pipeline)
    require_range(first, last)
    if logs_of(database, pipeline, base):
        view = log_of(database, pipeline, base, source)
        start = handled_of(state, view.source) if first is None else first
        if last is not None and start > last:
            message = f"what is not handled of {view.source} begins at offset {start}, behind --to {last}"
            raise refused("usage.range", message, "name the first offset: --from N")
        entries = _logged(view, start, first is None, last)
        return _shown(view.source, "log", _redacted(entries, redact), limit)
    name, consumer, staged = _staged(pipeline, state, bound, source)
    low, high = first or 0, last
    entries = (e for e in staged if e.offset >= low and (high is None or e.offset <= high))
    return _shown(name, f"step, as it is staged for {consumer}", _redacted(entries, redact), limit)


def require_range(first: int | None, last: int | None) -> None:
    """Raise ``FatalError`` (``usage.range``) if the range ends before it begins."""
    if first is not None and last is not None and first > last:
        raise refused("usage.range", f"--from {first} is behind --to {last}", "give the lower offset to --from")


def _redacted(entries: Iterator[Entry], fields: Sequence[str]) -> Iterator[Entry]:
    redaction = Redaction(fields)
    for entry in entries:
        nack = entry.nack and (entry.nack[0], redaction.nack(entry.nack[1], entry.record))
        yield entry._replace(record=redaction.record(entry.record), nack=nack)


def _shown(source: str, where: str, entries: Iterator[Entry], limit: int) -> Facts:
    rows = [_entry_json(entry) for entry in islice(entries, limit + 1)]
    return {"source": source, "from": where, "entries": rows[:limit], "more": len(rows) > limit}


def _logged(view: LogView, first: int, by_default: bool, last: int | None) -> Iterator[Entry]:
    if first >= view.state().next_offset and not by_default:
        raise beyond(view, first)
    return view.entries(first, None if last is None else last + 1)


def _staged(
    pipeline: str, state: PipelineState, bound: BoundPipeline | None, source: str | None
) -> tuple[str, str, Iterator[Entry]]:
    found = prepared_step(state)
    if found is None:
        raise no_log(pipeline, ", and none is open")
    step, decision = found
    known = bound.compiled.consumers if bound else {}
    whole = [
        delivery
        for delivery in decision.deliveries
        if delivery.parts and delivery.consumer in known and known[delivery.consumer].placement != "staged"
    ]
    at_hand = [
        one
        for one in whole
        if all(storage.size(storage.join(one.staging, part.name)) == part.bytes for part in one.parts)
    ]
    if not at_hand:
        raise no_log(pipeline, f", and the records of its open step {step.plan.step} are not at hand")
    name = chosen("source", source, [span.source for span in step.plan.ranges], pipeline)
    return name, at_hand[0].consumer, _entries(step, at_hand[0], name)


def _entries(step: OpenStep, delivery: StagedDelivery, source: str) -> Iterator[Entry]:
    for staged in staged_records(as_delivery(delivery, step.plan.step)):
        if staged.source == source:
            record, offset = staged.record, offset_of(step.plan, source, staged.ordinal)
            yield Entry(source, offset, step.plan.clock_ns // 1000, mode_of(record), record.collection, record)


def _entry_json(entry: Entry) -> Facts:
    """Return an entry as JSON, with the record in Conduit's layout."""
    refusal = entry.nack and {"node": entry.nack[0], "code": entry.nack[1].code, "message": entry.nack[1].message}
    return {
        "offset": entry.offset,
        "time": exactly_when(datetime.fromtimestamp(entry.timestamp_us / 1e6, UTC)),
        "mode": entry.mode,
        "operation": entry.record.operation,
        "namespace": entry.namespace,
        "nack": refusal,
        "record": json.loads(encode(entry.record)),
    }


def compact(
    lock: PipelineLock, database: sa.Engine, source: str | None = None, dry_run: bool = False
) -> list[dict[str, Any]]:
    """Compact the logs, or the log of ``source``. With ``dry_run``, only read namespaces and count.

    Raises ``FatalError`` (``log.step_open``): a prepared step may have to be staged again from the log; and
    ``log.missing``, ``log.corrupt`` for a segment that can't be compacted, once all others are.
    """
    found = prepared_step(lock.store.load())
    if found is not None:
        message = f"step {found[0].plan.step} of pipeline {lock.id} is open: its entries may be needed again"
        raise refused("log.step_open", message, "run it once first: conduit-dagster run --once")
    base = lock.options.log_url
    views = logs_of(database, lock.id, base) if source is None else []
    made = _counted if dry_run else _compact
    try:
        logs = {view.source: made(lock, view) for view in views or [log_of(database, lock.id, base, source)]}
        for done in logs.values():
            if done.damaged is not None:
                raise done.damaged
    except (LogDamagedError, OSError):
        # ``LeaseLost`` instead where the command was frozen, and another owner has replaced the files
        lock.store.transactions.run(lambda connection: None)
        raise
    return [
        {"source": name, "segments": done.segments, "entries": done.entries, "bytes": None if dry_run else done.bytes}
        for name, done in logs.items()
    ]


def _compact(lock: PipelineLock, view: LogView) -> Compacted:
    def tell(connection: sa.Connection, done: Compacted) -> None:
        # with each segment, since a kill may follow; one event for all of them
        detail = {"by": lock.by, "source": view.source, "entries": done.entries, "bytes": done.bytes}
        put = record_event if done.segments == 1 else update_event
        put(connection, lock.id, "log_compacted", **detail)

    retention = lock.bound.config.delivery.log_retention
    compactor = Compactor(view.folder, LogStore(lock.id), lock.store.transactions.run, retention)
    return compactor.compact(list(lock.pipeline.consumers), tell=tell)


def _counted(lock: PipelineLock, view: LogView) -> Compacted:
    """Return what a compaction would remove, without the bytes."""
    consumers = list(lock.pipeline.consumers)
    offsets = lock.store.transactions.read(lambda connection: offsets_of(connection, lock.id, view.source))
    if not anything_handled(consumers, offsets):
        return Compacted()
    highest, done = highest_handled(consumers, offsets), Compacted()
    held = lock.store.transactions.read(lambda connection: held_from(connection, lock.id, view.source))
    retention = lock.bound.config.delivery.log_retention
    for parts in beyond_retention(view.folder, closed_segments(view.parts()), retention, time.time_ns() // 1000):
        if parts[0].first <= highest and (held is None or parts[-1].next <= held):
            done = done.plus(_would_go(view, parts, consumers, offsets))
    return done


def _would_go(view: LogView, parts: list[LogPart], consumers: list[str], offsets: ByConsumer) -> Compacted:
    retention = CompactionRule(consumers, offsets)
    try:
        for batch in view.blocks(parts[0].first, parts[-1].next, ["namespace"]):
            retention.see(batch)
    except LogDamagedError as error:
        return Compacted(damaged=error)
    gone = sum(part.entries for part in parts) - retention.count
    return Compacted(1 if gone else 0, gone)
