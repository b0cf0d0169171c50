"""Views of the pipelines in the state store, for users and for processes other than the owner."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state.database import reading
from conduit_dagster.state.history import deleted
from conduit_dagster.state.log_store import LogState
from conduit_dagster.state.pipeline_state import REPLAY
from conduit_dagster.state.tables import collections, consumers, logs, offsets, pipelines, sources, steps


def pipeline_rows(engine: sa.Engine) -> dict[str, dict[str, Any]]:
    """Return status, reason and first error of every pipeline that ever ran, by id."""
    with reading(engine) as connection:
        rows = connection.execute(sa.select(pipelines).order_by(pipelines.c.pipeline)).mappings().all()
    return {row["pipeline"]: _pipeline(row) for row in rows}


def stored_names(engine: sa.Engine) -> list[str]:
    """Return the ids of all pipelines that ever ran, without deleted ones."""
    away = deleted(engine)
    return [name for name in pipeline_rows(engine) if name not in away]


def locked_row(connection: sa.Connection, pipeline: str) -> dict[str, Any] | None:
    """Return a row of :func:`pipeline_rows`, locked until the transaction ends; None if the pipeline never ran."""
    mine = sa.select(pipelines).where(pipelines.c.pipeline == pipeline).with_for_update()
    row = connection.execute(mine).mappings().first()
    return None if row is None else _pipeline(row)


def _pipeline(row: Any) -> dict[str, Any]:
    error = json.loads(row["error"]) if row["error"] else None
    owner = json.loads(row["owner"]) if row["owner"] else None
    return {
        "id": row["pipeline"],
        "status": row["status"],
        "reason": row["reason"],
        "file": row["file"],
        "error": error,
        "owner": owner,
        "step": row["next_step"] - 1,
        "updated_ns": row["updated_ns"],
    }


Rows = list[dict[str, Any]]


def _source_rows(connection: sa.Connection, pipeline: str | None) -> dict[str, Rows]:
    """Return the rows of the table, without those of replays, by pipeline."""
    query = sa.select(sources).order_by(sources.c.pipeline, sources.c.source)
    found: dict[str, Rows] = {}
    for row in connection.execute(_only(query, sources, pipeline)).mappings():
        if json.loads(row["unit"]).get("plugin") == REPLAY:
            continue
        counts = {name: row[name] for name in ("generation", "acked", "filtered", "nacked")}
        # the column of this name is the next record's offset, which a rewind or an import of a log moves
        counts["records"] = row["acked"] + row["nacked"]
        one = {"id": row["source"], "position": json.loads(row["position"]), **counts}
        found.setdefault(row["pipeline"], []).append(one)
    return found


def _only(query: sa.Select[Any], table: sa.Table, pipeline: str | None) -> sa.Select[Any]:
    return query if pipeline is None else query.where(table.c.pipeline == pipeline)


def source_rows(engine: sa.Engine, pipeline: str) -> Rows:
    """Return position and counts of each source of the file, over all its runs.

    The position of a logged source is the end of its log, and ``undelivered`` counts its logged, unhandled records; a
    source of a join has the join's counts.
    """
    return every_source_row(engine, pipeline).get(pipeline, [])


def every_source_row(engine: sa.Engine, pipeline: str | None = None) -> dict[str, Rows]:
    """Return :func:`source_rows` of one pipeline, or of all that have sources, in two queries."""
    logged: dict[str, dict[str, LogState]] = {}
    with reading(engine) as connection:
        for row in connection.execute(_only(sa.select(logs), logs, pipeline)).mappings():
            end = LogState(row["next_offset"], json.loads(row["position"]))
            logged.setdefault(row["pipeline"], {})[row["source"]] = end
        found = _source_rows(connection, pipeline)
    return {name: _real(rows, logged.get(name, {})) for name, rows in found.items()}


def _real(found: Rows, logged: dict[str, LogState]) -> Rows:
    rows = {row["id"]: row for row in found}
    handled = {name: rows[name]["position"] for name in logged if name in rows}
    joins = [row for name, row in rows.items() if name not in logged and isinstance(row["position"], dict)]
    for join in joins:
        if logged and set(join["position"]) <= set(logged):
            del rows[join["id"]]
            for name in join["position"]:
                counts = ("records", "acked", "filtered", "nacked")
                rows[name] = {**rows[name], **{one: rows[name][one] + join[one] for one in counts}}
            handled.update(join["position"])
    ends = {
        name: {"position": end.position, "undelivered": max(0, end.next_offset - handled[name])}
        for name, end in logged.items()
        if name in handled
    }
    return [{**row, "undelivered": 0, **ends.get(name, {})} for name, row in rows.items()]


def consumer_rows(engine: sa.Engine, pipeline: str) -> list[dict[str, Any]]:
    """Return the number of records delivered to each consumer, over all runs."""
    with reading(engine) as connection:
        mine = sa.select(consumers).where(consumers.c.pipeline == pipeline).order_by(consumers.c.consumer)
        return [
            {"id": row["consumer"], "kind": row["kind"], "delivered": row["delivered"], "step": row["step"]}
            for row in connection.execute(mine).mappings()
        ]


def delivered_counts(engine: sa.Engine) -> dict[str, int]:
    """Return the number of records delivered by each pipeline, to all of its destinations together."""
    total = sa.func.sum(consumers.c.delivered)
    counted = sa.select(consumers.c.pipeline, total).where(consumers.c.kind != "dlq").group_by(consumers.c.pipeline)
    with reading(engine) as connection:
        return {pipeline: int(delivered or 0) for pipeline, delivered in connection.execute(counted)}


def offset_rows(engine: sa.Engine, pipeline: str) -> list[dict[str, Any]]:
    """Return the offsets of every consumer, per source and namespace; ``*`` is the source's overall offset."""
    mine = sa.select(offsets).where(offsets.c.pipeline == pipeline)
    mine = mine.order_by(offsets.c.consumer, offsets.c.source, offsets.c.namespace)
    with reading(engine) as connection:
        return [dict(row) for row in connection.execute(mine).mappings()]


def collection_rows(engine: sa.Engine, pipeline: str) -> list[dict[str, Any]]:
    """Return the state of each collection of each source: in its copy, at the end of the copy, or in sync."""
    mine = sa.select(collections).where(collections.c.pipeline == pipeline)
    with reading(engine) as connection:
        ordered = mine.order_by(collections.c.source, collections.c.namespace)
        return [dict(row) for row in connection.execute(ordered).mappings()]


def last_done_ns(engine: sa.Engine, pipeline: str) -> int:
    """Return when the newest step was done, in ns since the epoch; 0 if none is known."""
    mine = (steps.c.pipeline == pipeline, steps.c.state == "done", steps.c.done_ns > 0)
    newest = sa.select(steps.c.done_ns).where(*mine).order_by(steps.c.step.desc()).limit(1)
    with reading(engine) as connection:
        return connection.execute(newest).scalar_one_or_none() or 0


def log_names(engine: sa.Engine, pipeline: str) -> list[str]:
    """Return the sources whose records are logged."""
    mine = sa.select(logs.c.source).where(logs.c.pipeline == pipeline).order_by(logs.c.source)
    with reading(engine) as connection:
        return list(connection.execute(mine).scalars())
