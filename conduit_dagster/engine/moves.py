"""Which offsets a step moves."""

from __future__ import annotations

from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.state.offsets import EVERYTHING
from conduit_dagster.state.steps import Decision, Plan, Range, SourceCount

Offsets = dict[str, dict[str, int]]
"""Source to namespace to the last offset that is handled."""


def after_step(pipeline: CompiledPipeline, plan: Plan, decision: Decision) -> Offsets:
    """Where a consumer stands that has handled all of the step."""
    moves: Offsets = {}
    for span in plan.ranges if not plan.replay else ():
        count = decision.sources.get(span.source, SourceCount())
        for source, (first, stop) in _offsets(pipeline, span, count.read, whole=True).items():
            if stop > first:
                # a join's namespaces are not told apart
                seen = decision.namespaces.get(span.source, {}) if source == origin_of(pipeline, span.source) else {}
                named = {namespace: first + last.ordinal for namespace, last in seen.items()}
                moves[source] = {**named, EVERYTHING: stop - 1}
    return moves


def before_record(pipeline: CompiledPipeline, plan: Plan, decision: Decision, source: str, ordinal: int) -> Offsets:
    """Where a consumer stands whose next unhandled record is this one: right before it (CASES C12)."""
    moves: Offsets = {}
    for span in plan.ranges if not plan.replay else ():
        count = ordinal if span.source == source else decision.sources.get(span.source, SourceCount()).read
        whole = span.source != source
        for real, (first, stop) in _offsets(pipeline, span, count, whole).items():
            if stop > first:
                moves[real] = {EVERYTHING: stop - 1}
        if span.source == source:
            break
    return moves


def before_next(
    pipeline: CompiledPipeline, plan: Plan, decision: Decision, following: tuple[str, int] | None
) -> Offsets:
    """Where a consumer stands whose next record comes from this record of a source; None: it has handled all."""
    if following is None:
        return after_step(pipeline, plan, decision)
    return before_record(pipeline, plan, decision, *following)


def _offsets(pipeline: CompiledPipeline, span: Range, count: int, whole: bool) -> dict[str, tuple[int, int]]:
    inlet = pipeline.known(span.source)
    return {span.source: (span.offset, span.offset + count)} if inlet is None else inlet.offsets(span, count, whole)


def origin_of(pipeline: CompiledPipeline, source: str) -> str:
    """The connector whose records a step reads under this name."""
    inlet = pipeline.known(source)
    return source if inlet is None else inlet.origin


def offset_of(plan: Plan, source: str, ordinal: int) -> int:
    """The offset of a record of the step."""
    return span_of(plan, source).offset + ordinal


def span_of(plan: Plan, source: str) -> Range:
    """The step's range of a source."""
    return next(span for span in plan.ranges if span.source == source)
