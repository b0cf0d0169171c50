"""Check whether the pipeline's file still refers to the data under which a step, or the store, knows a source."""

from __future__ import annotations

from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.state.connector_registrations import SourceUnit
from conduit_dagster.state.pipeline_state import LOGGED, PipelineState, SourceState
from conduit_dagster.state.steps import Plan


def unit_of(pipeline: CompiledPipeline, node: SourceNode) -> SourceUnit:
    """Return the identity of the data that a source reads."""
    return SourceUnit(node.source.unit, pipeline.program.root)


def reads_same(pipeline: CompiledPipeline, node: SourceNode | None, state: PipelineState) -> bool:
    """Return whether the source still reads the data registered in the store, with positions of the same kind.

    The stored generation, positions and offsets are meaningless for any other data.
    """
    known = None if node is None else state.sources.get(node.id)
    if node is None or known is None:
        return False
    if node.is_replay:
        return known.is_replay
    if node.only:
        return known.late == node.only and _is_same(pipeline, node, state.sources.get(node.origin))
    return _is_same(pipeline, node, known)


def _is_same(pipeline: CompiledPipeline, node: SourceNode, known: SourceState | None) -> bool:
    is_logged = isinstance(node.source, LogSource)
    return (
        known is not None
        and is_logged == bool(known.unit.get(LOGGED))
        and unit_of(pipeline, node).is_same_as(known.unit)
    )


def changed_source(pipeline: CompiledPipeline, plan: Plan, state: PipelineState) -> str | None:
    """Return a source of the step that was removed or now refers to other data; None if all can still be read."""
    for span in plan.ranges:
        if not reads_same(pipeline, pipeline.find_source(span.source), state):
            return span.source
    return None
