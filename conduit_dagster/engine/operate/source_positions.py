"""Position of each source of a pipeline. Read-only, also while the pipeline runs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from conduit_dagster.config.scalars import masked
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.operate.logs import LogView, logs_of
from conduit_dagster.sdk import Source
from conduit_dagster.state.database import reading
from conduit_dagster.state.overview import collection_rows, pipeline_rows
from conduit_dagster.state.pipeline_state import PipelineState, SourceState, load

Facts = dict[str, Any]


def stored(database: sa.Engine, pipeline: str) -> PipelineState | None:
    """Return the current state; None for a pipeline that never ran."""
    if pipeline not in pipeline_rows(database):
        return None
    with reading(database) as connection:
        return load(connection, pipeline)


def joined_of(state: PipelineState) -> dict[str, str]:
    """Return the sources that are members of a join, each with the join's name."""
    joins = {name: one for name, one in state.sources.items() if one.unit.get("plugin") == "join"}
    return {member: name for name, join in joins.items() for member in join.position}


def position_facts(database: sa.Engine, pipeline: str, bound: BoundPipeline | None, base: str) -> list[Facts]:
    """Return a row per source; lags only if the pipeline's file is there (``bound``) and the source knows them."""
    state = stored(database, pipeline)
    if state is None:
        return []
    logs = {view.source: view for view in logs_of(database, pipeline, base)}
    joined = joined_of(state)
    collections = collection_rows(database, pipeline)
    return [
        {
            **_facts(name, one, joined, state, logs.get(name), _source(bound, name)),
            "collections": [
                {key: row[key] for key in ("namespace", "mode", "offset")}
                for row in collections
                if row["source"] == name
            ],
        }
        for name, one in state.sources.items()
    ]


def _source(bound: BoundPipeline | None, name: str) -> Source | None:
    inlets = bound.compiled.sources if bound else ()
    return next((inlet.source for inlet in inlets if inlet.id == name), None)


def _facts(
    name: str,
    one: SourceState,
    joined: dict[str, str],
    state: PipelineState,
    log: LogView | None,
    source: Source | None,
) -> Facts:
    join = joined.get(name)
    # a member's own row stands still while the join moves
    position = one.position if join is None else state.sources[join].position[name]
    read = position if log is None else log.state().position
    return {
        "id": name,
        "generation": one.generation,
        "position": position,
        "offset": position if log is not None else one.records,
        "unit": {key: masked(value) if isinstance(value, str) else value for key, value in one.unit.items()},
        "joined": join,
        "log": None if log is None else _log_facts(log, position),
        "lag": None if source is None else lag_of(source, read),
        "lag_unit": None if source is None else source.lag_unit,
    }


def _log_facts(log: LogView, position: int) -> Facts:
    state = log.state()
    return {
        "logged_upto": state.next_offset - 1,
        "handled_upto": position - 1,
        "waiting": state.next_offset - position,
        "source_position": state.position,
    }


def lag_of(source: Source, position: Any) -> int | None:
    """Return a source's lag; None if unknown or if the source raises: a status query must not fail with it."""
    try:
        return source.lag(position)
    except Exception:  # noqa: BLE001  # any plugin's code
        return None
