"""Line 4 of the protocol: the nacks of a staged step, in order, through the nack window."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.engine.stage_job import Ledger, NackRow, SourceFailure
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.state.steps import LoggedRange, Plan, Range, SourceCount

Within = Callable[[Range, Any], Any]
"""Returns the source's position at a boundary inside a range."""


class Resolution(NamedTuple):
    """Result of passing a step through the nack window."""

    counts: dict[str, SourceCount]
    nacks: list[NackRow]
    window: str
    refused: NackRow | None
    """The nack that exceeds the threshold; the step must be cut before its record."""


def resolve(plan: Plan, ledgers: list[Ledger], window: NackWindow, state: str) -> Resolution:
    """Pass a step's nacks through the window: sources in file order, records in source order (DELIVERY.md, Resolve)."""
    counts = _counts(plan, ledgers)
    order = {span.source: i for i, span in enumerate(plan.ranges)}
    nacks = sorted((row for ledger in ledgers for row in ledger.nacks), key=lambda r: (order[r.source], r.ordinal))
    bases = {span.source: base_of(plan, counts, span.source) for span in plan.ranges}
    indexes = [bases[row.source] + row.ordinal for row in nacks]
    if plan.replay:
        # a dead letter that fails again is not a new nack: the window has already counted it
        return Resolution(counts, nacks, state, None)
    verdict = window.resolve(state, sum(c.read for c in counts.values()), indexes)
    refused = None if verdict.exceeded is None else nacks[indexes.index(verdict.exceeded)]
    return Resolution(counts, nacks, verdict.state, refused)


def _counts(plan: Plan, ledgers: list[Ledger]) -> dict[str, SourceCount]:
    counts = {span.source: SourceCount() for span in plan.ranges}
    for ledger in ledgers:
        for source, count in ledger.sources.items():
            total = counts[source]
            total.read += count.read
            total.filtered += count.filtered
            total.nacked += count.nacked
    return counts


def base_of(plan: Plan, counts: Mapping[str, SourceCount], source: str) -> int:
    """Return how many records of the step come before the source's first one."""
    before = [span.source for span in plan.ranges[: [s.source for s in plan.ranges].index(source)]]
    return sum(counts[name].read for name in before)


def cut(plan: Plan, refused: NackRow, within: Within) -> list[Range]:
    """Return the plan's ranges, ending right before the refused record; empty if nothing is left."""
    ranges: list[Range] = []
    for span in plan.ranges:
        if span.source == refused.source:
            end = within(span, refused.before)
            if end != span.start:
                ranges.append(msgspec.structs.replace(span, end=end))
            break
        ranges.append(span)
    return ranges


def cut_failed(
    plan: Plan, failures: Sequence[SourceFailure], within: Within, read_within: Callable[[str, LoggedRange, Any], Any]
) -> Plan:
    """Return the plan with each failing source's range cut right before its failure; other ranges stay whole.

    If the step logs the records it reads (``Plan.logs``), positions are offsets, and the source's own positions are cut
    as well.
    """
    ranges, logs = list[Range](), dict(plan.logs)
    known = {failure.source: failure for failure in failures}
    for span in plan.ranges:
        failure = known.get(span.source)
        if failure is None:
            ranges.append(span)
            continue
        reach = logs.pop(span.source, None)
        if not failure.ordinal:
            continue
        if reach is None:
            ranges.append(msgspec.structs.replace(span, end=within(span, failure.before)))
        else:
            ranges.append(msgspec.structs.replace(span, end=span.start + failure.ordinal))
            logs[span.source] = LoggedRange(reach.start, read_within(span.source, reach, failure.before))
    return msgspec.structs.replace(plan, ranges=ranges, logs=logs)


def refusal(row: NackRow, window: NackWindow) -> ConduitError:
    """Return the error that a run fails with if the window does not accept a nack.

    An exceeded threshold is fatal. At threshold 0 it is the original error: fatal for a processor, which would fail the
    same way again, and transient for a destination (DESIGN.md, Errors; CASES A13, A14, B6, B7).
    """
    place = f"{row.source}, position {row.position}"
    if window.threshold:
        message = f"nack threshold exceeded ({window.threshold} of {window.size} records): {row.message}"
        fix = "look at the dead letters, remove the cause, and run again: it goes on with this record"
        return FatalError(message, code="nacks.threshold_exceeded", place=place, node=row.node, fix=fix)
    fix = "correct the record or the pipeline, or let nacked records go to the dead-letter queue (window-size: 0)"
    kind = TransientError if row.by_destination else FatalError
    return kind(row.message, code=row.code, place=place, node=row.node, fix=fix)


@dataclass(frozen=True)
class WindowVerdict:
    """Result of passing a sequence of results through the window."""

    exceeded: int | None
    """Index of the first nack that the window does not accept; nothing at or after it is handled."""
    state: str
    """Window state at the boundary, without the refused nack."""


@dataclass(frozen=True)
class NackWindow:
    """At most ``threshold`` nacks among the last ``size`` records; size 0 accepts any number (CASES A13-A15).

    Threshold 0 means that the first nack stops the pipeline, whatever the size.
    """

    size: int
    threshold: int

    def resolve(self, state: str, count: int, nacks: Iterable[int]) -> WindowVerdict:
        """Pass ``count`` results through the window; ``nacks`` are the indexes of the nacks among them, ascending.

        ``state`` is the previous window: '1' for a nack and '0' for an ack, the newest last.
        """
        if self.size == 0:
            return WindowVerdict(None, "")
        recent = deque(i - len(state) for i, bit in enumerate(state) if bit == "1")
        for index in nacks:
            while recent and recent[0] <= index - self._span:
                recent.popleft()
            if len(recent) >= self.threshold:
                return WindowVerdict(index, self._state(state, index, recent))
            recent.append(index)
        return WindowVerdict(None, self._state(state, count, recent))

    @property
    def _span(self) -> int:
        return self.size if self.threshold else 1

    def _state(self, before: str, count: int, recent: Iterable[int]) -> str:
        """Return the last ``size`` results before index ``count``."""
        length = min(self._span, len(before) + count)
        bits = ["0"] * length
        for index in recent:
            if (place := index - (count - length)) >= 0:
                bits[place] = "1"
        return "".join(bits)
