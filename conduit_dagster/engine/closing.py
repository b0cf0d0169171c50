"""Closing of connectors at the end of what used them."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.secret_values import hide

log = structlog.get_logger("conduit.engine")


def close(kind: str, name: str, closing: Callable[[], object]) -> None:
    """Call a connector's ``close``. A failure is only logged: the result stands, and the others are closed."""
    try:
        closing()
    except Exception as error:  # noqa: BLE001  # code of any author
        log.warning(f"a {kind} could not be closed", **{kind: name}, cause=hide(str(error)))


def close_sources(pipeline: CompiledPipeline) -> None:
    """Close every source of a pipeline, each once."""
    nodes = {id(node.source): node for node in (*pipeline.inputs, *pipeline.sources)}
    for node in nodes.values():
        close("source", node.id, node.source.close)


def close_connectors(pipeline: CompiledPipeline) -> None:
    """Close every source and destination of a pipeline."""
    close_sources(pipeline)
    for name, destination in pipeline.consumers().items():
        close("destination", name, destination.close)
