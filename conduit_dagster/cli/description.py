"""Facts about one pipeline, from its file and from the state store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from conduit_dagster.cli.pipeline_list import broken_file, status_of, status_rows
from conduit_dagster.config import pointer as pointers
from conduit_dagster.daemon_threads import BY_HAND
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.registering import attach_kept_to_look
from conduit_dagster.metrics.source_lag import source_lag
from conduit_dagster.readable import when
from conduit_dagster.secret_values import masked
from conduit_dagster.state import overview
from conduit_dagster.state.dead_letters import STATES, DeadLetterQuery, letter_id, newest
from conduit_dagster.state.history import events, said
from conduit_dagster.state.recovery_state import never_began

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

    from conduit_dagster.config.parse import ParsedPipeline
    from conduit_dagster.config.pipeline import ConnectorConfig, DeadLetterQueue, ProcessorConfig
    from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue

_NEWEST = 10
Facts = dict[str, Any]


def described(catalogue: Catalogue, parsed: ParsedPipeline, store: sa.Engine | None) -> Facts:
    """Return all facts about one pipeline. Settings are shown as written, without values from the environment."""
    config, bound = parsed.config, catalogue.get(parsed.config.id)
    row = None if store is None else status_rows(store).get(config.id)
    line, _ = parsed.locate()
    return {
        "id": config.id,
        "name": config.name,
        "description": config.description,
        "file": parsed.file,
        "line": line,
        "runnable": bound is not None and not bound.not_yet,
        "status": _status_facts(config.status, row),
        "error": None if row is None else row["error"],
        "delivery": _delivery(parsed, bound),
        "trigger": config.trigger.model_dump(mode="json", by_alias=True, exclude_none=True),
        "not_yet": [] if bound is None else list(bound.not_yet),
        **_parts(parsed, bound, store),
        **_past(config.id, store),
        "findings": [finding.as_json() for finding in parsed.findings],
    }


def described_without_file(name: str, store: sa.Engine, catalogue: Catalogue) -> Facts:
    """Return what the store alone knows of a pipeline that is in no file; what only a file says is None or empty.

    Where the file that it came from can't be read any more, with that file and its findings.
    """
    row, sources, consumers = status_rows(store)[name], overview.source_rows(store, name), {}
    broken = broken_file(row, catalogue)
    for one in overview.consumer_rows(store, name):
        consumers[one["id"]] = one["delivered"]
    own = {"plugin": None, "namespace": "", "settings": {}, "processors": []}
    unknown = {"columnar": False, **_lag(name, None, None)}
    queue = {"plugin": None, "settings": {}, "window_size": None, "window_nack_threshold": None}
    delivered = consumers.pop(DEAD_LETTERS, 0)
    return {
        "id": name,
        "name": name,
        "description": "",
        "file": broken[0].file if broken else None,
        "line": broken[0].line if broken else None,
        "runnable": False,
        "status": _status_facts(None, row),
        "error": row["error"],
        "delivery": None,
        "trigger": None,
        "not_yet": [],
        "sources": [{**own, **unknown, **one} for one in sources],
        "processors": [],
        "destinations": [{**own, "id": id_, "delivered": count, "open": None} for id_, count in consumers.items()],
        "dead_letter_queue": {**queue, "delivered": delivered},
        **_past(name, store),
        "findings": [finding.as_json() for finding in broken],
    }


def _status_facts(starts: str | None, row: Facts | None) -> Facts:
    status = status_of(row)
    return {
        "now": status["status"],
        "reason": status["reason"],
        "owner_alive": status["owner_alive"],
        "restart": status["restart"],
        "since": None if row is None or never_began(row, row["recovery"]) else when(row["updated_ns"]),
        "starts": starts,
    }


def _delivery(parsed: ParsedPipeline, bound: BoundPipeline | None) -> Facts:
    delivery = parsed.config.delivery
    log, why = bound.log() if bound is not None else (None, "the pipeline has errors")
    return {
        "strategy": delivery.strategy,
        "batch_size": delivery.batch_size,
        "batch_bytes": delivery.batch_bytes,
        "log": {"chosen": log, "why": why},
        "fan_in": parsed.config.fan_in,
    }


def _parts(parsed: ParsedPipeline, bound: BoundPipeline | None, store: sa.Engine | None) -> Facts:
    from conduit_dagster.engine.operate.consumer_lag import open_deliveries  # a list needs none of it

    config = parsed.config
    if bound is not None and store is not None:
        attach_kept_to_look(bound.compiled, store)
    sources = [] if store is None else overview.source_rows(store, config.id)
    consumers = [] if store is None else overview.consumer_rows(store, config.id)
    delivered = {row["id"]: row["delivered"] for row in consumers}
    at = {row["id"]: row for row in sources}
    unfinished = {} if store is None else open_deliveries(store, config.id)
    return {
        "sources": [_source(parsed, one, at.get(one.id), bound) for one in config.sources],
        "processors": [_processor(parsed, one) for one in config.processors],
        "destinations": [
            {**_connector(parsed, one), "delivered": delivered.get(one.id, 0), "open": unfinished.get(one.id)}
            for one in config.destinations
        ],
        "dead_letter_queue": _queue(parsed, config.dead_letter_queue, delivered.get(DEAD_LETTERS, 0)),
    }


def _source(parsed: ParsedPipeline, one: ConnectorConfig, row: Facts | None, bound: BoundPipeline | None) -> Facts:
    counts = {name: 0 if row is None else row[name] for name in ("records", "acked", "filtered", "nacked")}
    position = None if row is None else row["position"]
    node = None if bound is None else bound.compiled.find_source(one.id)
    columnar = bound is not None and node is not None and bound.compiled.takes_rows(node)
    counts["undelivered"] = 0 if row is None else row["undelivered"]
    own = {"columnar": columnar, "position": position, **counts, **_lag(one.id, position, bound)}
    return {**_connector(parsed, one), **own}


def _lag(source: str, position: Any, bound: BoundPipeline | None) -> Facts:
    if bound is None or position is None:
        return {"lag": None, "lag_unit": None, "lag_seconds": None}
    reader = next(node.source for node in bound.compiled.sources if node.id == source)
    lag = source_lag(reader, position, BY_HAND)
    return {"lag": lag.amount, "lag_unit": lag.unit, "lag_seconds": lag.seconds}


def _connector(parsed: ParsedPipeline, one: ConnectorConfig) -> Facts:
    return {
        "id": one.id,
        "plugin": one.plugin,
        "namespace": one.namespace,
        "settings": _settings(parsed, one.where, one.settings),
        "processors": [_processor(parsed, processor) for processor in one.processors],
    }


def _processor(parsed: ParsedPipeline, one: ProcessorConfig) -> Facts:
    return {
        "id": one.id,
        "plugin": one.plugin,
        "condition": one.condition,
        "namespace": one.namespace,
        "settings": _settings(parsed, one.where, one.settings),
    }


def _queue(parsed: ParsedPipeline, queue: DeadLetterQueue, delivered: int) -> Facts:
    return {
        "plugin": queue.plugin,
        "settings": _settings(parsed, "/dead-letter-queue", queue.settings),
        "window_size": queue.window_size,
        "window_nack_threshold": queue.window_nack_threshold,
        "delivered": delivered,
    }


def _settings(parsed: ParsedPipeline, where: str, settings: Mapping[str, str]) -> dict[str, str]:
    base = f"{where}/settings"
    written = {key: parsed.written(pointers.child(base, key)) for key in settings}
    # a value that is not in the file is a default of the format, not a secret
    return {key: masked(settings[key] if text is None else text) for key, text in written.items()}


def _past(pipeline: str, store: sa.Engine | None) -> Facts:
    if store is None:
        return {"dead_letters": [], "events": []}
    letters = newest(store, pipeline, DeadLetterQuery(STATES), _NEWEST)
    happened = reversed(events(store, pipeline, _NEWEST))
    return {
        "dead_letters": [
            {"id": letter_id(row), "at": when(row["at_ns"])}
            | {key: value for key, value in row.items() if key not in ("at_ns", "pipeline")}
            for row in letters
        ],
        "events": [
            {"at": when(one.at_ns), "event": one.event, "says": said(one.event, one.detail), "detail": one.detail}
            for one in happened
        ],
    }


def short(value: Any, limit: int = 100) -> str:
    """Return a JSON value on one line of at most ``limit`` characters."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return text if len(text) <= limit else text[: limit - 1] + "…"
