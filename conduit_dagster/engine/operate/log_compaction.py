"""``log compact``: remove handled entries beyond the retention from closed segments, but keep each namespace's last."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from conduit_dagster.commit_log.compaction import (
    Compacted,
    CompactionRule,
    Compactor,
    anything_handled,
    beyond_retention,
    highest_handled,
)
from conduit_dagster.engine.operate.open_delivery import prepared_step
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
from conduit_dagster.engine.operate.source_positions import LogView, log_of, logs_of
from conduit_dagster.state.catch_ups import held_from
from conduit_dagster.state.delivery_store import ByConsumer, offsets_of
from conduit_dagster.state.history import record_event
from conduit_dagster.state.log_store import LogPart, LogStore


def compact(
    lock: PipelineLock, database: sa.Engine, source: str | None = None, dry_run: bool = False
) -> list[dict[str, Any]]:
    """Compact the logs, or the log of ``source``. With ``dry_run``, only read namespaces and count.

    Raises ``FatalError`` (``log.step_open``): a prepared step may have to be staged again from the log.
    """
    found = prepared_step(lock.store.load())
    if found is not None:
        message = f"step {found[0].plan.step} of pipeline {lock.id} is open: its entries may be needed again"
        raise refused("log.step_open", message, "run it once first: conduit-dagster run --once")
    base = lock.options.log_url
    views = logs_of(database, lock.id, base) if source is None else []
    return [_compact(lock, view, dry_run) for view in views or [log_of(database, lock.id, base, source)]]


def _compact(lock: PipelineLock, view: LogView, dry_run: bool) -> dict[str, Any]:
    consumers = list(lock.pipeline.consumers())
    if dry_run:
        done = _counted(lock, view, consumers)
        return {"source": view.source, "segments": done.segments, "entries": done.entries, "bytes": None}
    retention = lock.bound.config.delivery.log_retention
    done = Compactor(view.folder, LogStore(lock.id), lock.store.transactions.run, retention).compact(consumers)
    if done.segments:
        detail = {"by": lock.by, "source": view.source, "entries": done.entries, "bytes": done.bytes}
        lock.store.transactions.run(lambda connection: record_event(connection, lock.id, "log_compacted", **detail))
    return {"source": view.source, **done._asdict()}


def _counted(lock: PipelineLock, view: LogView, consumers: list[str]) -> Compacted:
    offsets = lock.store.transactions.read(lambda connection: offsets_of(connection, lock.id, view.source))
    if not anything_handled(consumers, offsets):
        return Compacted()
    highest, done = highest_handled(consumers, offsets), Compacted()
    held = lock.store.transactions.read(lambda connection: held_from(connection, lock.id, view.source))
    retention = lock.bound.config.delivery.log_retention
    for parts in beyond_retention(view.folder, _closed(view), retention, time.time_ns() // 1000):
        if parts[0].first <= highest and (held is None or parts[-1].next <= held):
            gone = _would_go(view, parts, consumers, offsets)
            done = done.plus(Compacted(1 if gone else 0, gone))
    return done


def _closed(view: LogView) -> list[list[LogPart]]:
    segments: dict[int, list[LogPart]] = {}
    for part in view.parts():
        segments.setdefault(part.segment, []).append(part)
    return list(segments.values())[:-1]  # the last one is active


def _would_go(view: LogView, parts: list[LogPart], consumers: list[str], offsets: ByConsumer) -> int:
    retention = CompactionRule(consumers, offsets)
    for batch in view.blocks(parts[0].first, parts[-1].next, ["namespace"]):
        retention.see(batch)
    return sum(part.entries for part in parts) - retention.count
