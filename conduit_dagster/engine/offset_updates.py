"""Offsets of a step's records, and those of a consumer that has handled some of them or all."""

from __future__ import annotations

from conduit_dagster.state.delivery_store import EVERYTHING, Offsets
from conduit_dagster.state.steps import Decision, Plan, Range, SourceCount


def after_step(plan: Plan, decision: Decision) -> Offsets:
    """Return the offsets of a consumer that has handled the whole step. Needs only stored data."""
    offsets: Offsets = {}
    for span in plan.ranges if not plan.replay else ():
        count = decision.sources.get(span.source, SourceCount())
        read = _offsets(plan, span, count.read, whole=True)
        # the namespaces of several joined sources are not tracked separately
        seen = decision.namespaces.get(span.source, {}) if len(read) == 1 else {}
        for source, (first, stop) in read.items():
            if stop > first:
                named = {namespace: first + last.ordinal for namespace, last in seen.items()}
                offsets[source] = {**named, EVERYTHING: stop - 1}
    return offsets


def before_record(plan: Plan, decision: Decision, source: str, ordinal: int) -> Offsets:
    """Return the offsets of a consumer whose next unhandled record is this one: right before it (CASES C12)."""
    offsets: Offsets = {}
    for span in plan.ranges if not plan.replay else ():
        count = ordinal if span.source == source else decision.sources.get(span.source, SourceCount()).read
        whole = span.source != source
        for real, (first, stop) in _offsets(plan, span, count, whole).items():
            if stop > first:
                offsets[real] = {EVERYTHING: stop - 1}
        if span.source == source:
            break
    return offsets


def last_offset(plan: Plan, decision: Decision, source: str) -> int:
    """Return the offset of the last record that the step has of a source; the one before its first, if it has none."""
    count = decision.sources.get(source)
    return span_of(plan, source).offset + (count.read if count else 0) - 1


def before_next(plan: Plan, decision: Decision, following: tuple[str, int] | None) -> Offsets:
    """Return the offsets of a consumer whose next record comes from this source record; None: it has handled all."""
    if following is None:
        return after_step(plan, decision)
    return before_record(plan, decision, *following)


def _offsets(plan: Plan, span: Range, count: int, whole: bool) -> dict[str, tuple[int, int]]:
    """Return the offsets ``[first, stop)`` of the range's first ``count`` records, by connector."""
    if is_joined(plan):
        # entries of joined records are not tracked separately: their offsets move with the whole range
        return {name: (span.start[name], span.end[name]) for name in span.start} if whole else {}
    return {span.connector: (span.offset, span.offset + count)}


def is_joined(plan: Plan) -> bool:
    """Return whether the plan's positions are offsets of several logs that are read as one."""
    return plan.reads == "join" and not plan.replay


def joined_members(plan: Plan) -> dict[str, list[str]]:
    """Return the sources of each join in the step."""
    return {span.source: list(span.start) for span in plan.ranges} if is_joined(plan) else {}


def generations(plan: Plan) -> dict[str, int]:
    """Return the generation of each source of a step, as the step names it."""
    return {span.source: span.generation for span in plan.ranges}


def origin_of(plan: Plan, source: str) -> str:
    """Return the connector whose records a step reads under this name."""
    return span_of(plan, source).connector


def offset_of(plan: Plan, source: str, ordinal: int) -> int:
    """Return the offset of a record of the step."""
    return span_of(plan, source).offset + ordinal


def span_of(plan: Plan, source: str) -> Range:
    """Return the step's range of a source."""
    return next(span for span in plan.ranges if span.source == source)
