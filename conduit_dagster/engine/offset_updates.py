"""Offset changes of a step, and the last record of each of its namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_

from conduit_dagster.record import Record, mode_of
from conduit_dagster.sdk import LazyRecords
from conduit_dagster.state.delivery_store import EVERYTHING, Offsets
from conduit_dagster.state.steps import Decision, LastInNamespace, Namespaces, Plan, Range, SourceCount


def after_step(plan: Plan, decision: Decision) -> Offsets:
    """Return the offsets of a consumer that has handled the whole step. Needs only stored data."""
    offsets: Offsets = {}
    for span in plan.ranges if not plan.replay else ():
        count = decision.sources.get(span.source, SourceCount())
        for source, (first, stop) in _offsets(plan, span, count.read, whole=True).items():
            if stop > first:
                # the namespaces of a join are not tracked separately
                seen = decision.namespaces.get(span.source, {}) if source == span.connector else {}
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


_metadata_of = attrgetter("metadata")


class NamespaceTracker:
    """Tracker of the last record of each namespace. Adjacent records that share their metadata cost one lookup."""

    def __init__(self, seen: dict[str, LastInNamespace]) -> None:
        self._seen = seen

    def see(self, records: list[Record], ordinal: int, origins: Sequence[int]) -> None:
        """Register a block as it left the source's processors; ``ordinal`` is the block's place in the range."""
        if not records:
            return
        if isinstance(records, LazyRecords):
            self._seen[records.like.collection] = LastInNamespace(ordinal + origins[-1], mode_of(records.like))
            return
        for place in _ends(list(map(_metadata_of, records))):
            record = records[place]
            self._seen[record.collection] = LastInNamespace(ordinal + origins[place], mode_of(record))


def namespaces_of(records: Sequence[Record]) -> str | list[str]:
    """Return the namespace of each record, or one name if all are equal. Requires at least one record."""
    if isinstance(records, LazyRecords):
        return records.like.collection
    if _is_shared(list(map(_metadata_of, records))):
        return records[0].collection
    named = [record.collection for record in records]
    return named[0] if len(set(named)) == 1 else named


def _is_shared(metadata: list[dict[str, str]]) -> bool:
    return all(map(is_, metadata, repeat(metadata[0])))


def _ends(metadata: list[dict[str, str]]) -> list[int]:
    """Return the end of each run of the same object."""
    last = len(metadata) - 1
    if _is_shared(metadata):
        return [last]
    return [place for place, one in enumerate(metadata) if place == last or metadata[place + 1] is not one]


def merged(parts: Iterable[Mapping[str, Mapping[str, LastInNamespace]]]) -> Namespaces:
    """Merge the namespaces of several tasks: the last record of each namespace."""
    total: Namespaces = {}
    for part in parts:
        for source, namespaces in part.items():
            known = total.setdefault(source, {})
            for namespace, seen in namespaces.items():
                if namespace not in known or known[namespace].ordinal < seen.ordinal:
                    known[namespace] = seen
    return total
