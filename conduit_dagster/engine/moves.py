"""Which offsets a step moves."""

from __future__ import annotations

from conduit_dagster.state.offsets import EVERYTHING
from conduit_dagster.state.steps import Decision, Plan, Range, SourceCount

Offsets = dict[str, dict[str, int]]
"""Source to namespace to the last offset that is handled."""


def after_step(plan: Plan, decision: Decision) -> Offsets:
    """Offsets of a consumer that has handled the whole step. Needs nothing but what the store knows of it."""
    moves: Offsets = {}
    for span in plan.ranges if not plan.replay else ():
        count = decision.sources.get(span.source, SourceCount())
        for source, (first, stop) in _offsets(plan, span, count.read, whole=True).items():
            if stop > first:
                # a join's namespaces are not told apart
                seen = decision.namespaces.get(span.source, {}) if source == span.connector else {}
                named = {namespace: first + last.ordinal for namespace, last in seen.items()}
                moves[source] = {**named, EVERYTHING: stop - 1}
    return moves


def before_record(plan: Plan, decision: Decision, source: str, ordinal: int) -> Offsets:
    """Where a consumer stands whose next unhandled record is this one: right before it (CASES C12)."""
    moves: Offsets = {}
    for span in plan.ranges if not plan.replay else ():
        count = ordinal if span.source == source else decision.sources.get(span.source, SourceCount()).read
        whole = span.source != source
        for real, (first, stop) in _offsets(plan, span, count, whole).items():
            if stop > first:
                moves[real] = {EVERYTHING: stop - 1}
        if span.source == source:
            break
    return moves


def before_next(plan: Plan, decision: Decision, following: tuple[str, int] | None) -> Offsets:
    """Where a consumer stands whose next record comes from this record of a source; None: it has handled all."""
    if following is None:
        return after_step(plan, decision)
    return before_record(plan, decision, *following)


def _offsets(plan: Plan, span: Range, count: int, whole: bool) -> dict[str, tuple[int, int]]:
    """The offsets ``[first, stop)`` of the range's first ``count`` records, by the connector they belong to."""
    if is_joined(plan):
        # entries of joined records are not told apart: their offsets move with the whole range
        return {name: (span.start[name], span.end[name]) for name in span.start} if whole else {}
    return {span.connector: (span.offset, span.offset + count)}


def is_joined(plan: Plan) -> bool:
    """Whether its positions are offsets of several logs that are read as one."""
    return plan.reads == "join" and not plan.replay


def joined_members(plan: Plan) -> dict[str, list[str]]:
    """The sources behind each join of the step."""
    return {span.source: list(span.start) for span in plan.ranges} if is_joined(plan) else {}


def generations(plan: Plan) -> dict[str, int]:
    """The generation of each source of a step; those of a join have the join's."""
    members = joined_members(plan)
    return {name: span.generation for span in plan.ranges for name in members.get(span.source, [span.source])}


def origin_of(plan: Plan, source: str) -> str:
    """The connector whose records a step reads under this name."""
    return span_of(plan, source).connector


def offset_of(plan: Plan, source: str, ordinal: int) -> int:
    """The offset of a record of the step."""
    return span_of(plan, source).offset + ordinal


def span_of(plan: Plan, source: str) -> Range:
    """The step's range of a source."""
    return next(span for span in plan.ranges if span.source == source)
