"""Lines 1 to 3 of the protocol if a step's records are logged while it is staged: the source is read only once.

For sources that know the number of records in a range before reading it: the step's offsets, and so its delivery
hashes, are fixed in its plan. Other sources are logged first (``appender.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from conduit_dagster.commit_log.splits import log_split
from conduit_dagster.engine.appender import Append, Appender, parts_of
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.offset_updates import span_of
from conduit_dagster.engine.stage_job import Ledger, LogRequest, SplitOf
from conduit_dagster.engine.stager import Staged, Stager, Tasks, group
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Split
from conduit_dagster.state.log_store import LogPart
from conduit_dagster.state.pipeline_state import SourceState
from conduit_dagster.state.steps import LoggedRange, Plan, Range


class PlannedLogRanges(NamedTuple):
    """A step's ranges in the log, and the corresponding ranges in the sources themselves."""

    ranges: list[Range]
    logs: dict[str, LoggedRange]


class StepLog:
    """Records of a pipeline's sources that are not in the log yet: logged by the step that reads them, or before it.

    Not thread-safe: used by the thread that plans and stages.
    """

    def __init__(self, context: StepContext, appender: Appender, stager: Stager) -> None:
        self._context, self._pipeline, self._appender, self._stager = context, context.pipeline, appender, stager
        self._fits = self.fits(context.pipeline)
        self._first: list[Append] = []
        self._planned: tuple[PlannedLogRanges, list[Append], Tasks] | None = None

    @staticmethod
    def fits(pipeline: CompiledPipeline) -> bool:
        """Return whether steps may log while staging: each takes everything new, and sources can be read again.

        A join pairs records that are already logged; ``alternate`` takes one source at a time.
        """
        return pipeline.program.fan_in == "merge" and all(one.source.replayable for one in pipeline.sources)

    # -- line 1 -------------------------------------------------------------------------------------------------

    def ahead(self, horizons: Mapping[str, Any] | None, known: Mapping[str, SourceState]) -> PlannedLogRanges:
        """Return a step's ranges; empty if nothing is new, or if it has to be logged first (:meth:`log_first`)."""
        # all records in the log are on their way: now a source's failure may be raised
        self._appender.raise_failure()
        self._planned, self._first = None, self._appender.new(horizons)
        found = PlannedLogRanges([], {})
        if not self._fits or not self._first:
            return found
        # once for a step: on a cluster the number changes while executors come and go
        slots = self._context.step_slots()
        splits = self._splits(self._first, slots)
        for append, mine in zip(self._first, splits, strict=True):
            count = _count(mine)
            if not count:
                return PlannedLogRanges([], {})
            name, offset = append.node.id, append.offset
            found.ranges.append(Range(name, known[name].generation, offset, offset + count, offset))
            found.logs[name] = LoggedRange(append.start, append.end)
        self._planned, self._first = (found, self._first, _tasks(self._first, splits, slots)), []
        return found

    def _splits(self, appends: Sequence[Append], slots: int) -> list[list[Split]]:
        return [self._appender.split(append, slots) for append in appends]

    def log_first(self) -> bool:
        """Log the records that :meth:`ahead` could not plan; return False if there were none."""
        appends, self._first = self._first, []
        return bool(appends) and self._appender.append(appends)

    # -- lines 2 and 3 ------------------------------------------------------------------------------------------

    def can_stage(self, plan: Plan) -> bool:
        """Return whether a step of an earlier run can be staged: its records are in the log, or staging logs them."""
        if self._is_due(plan):
            nodes = {source_node.id: source_node for source_node in self._pipeline.sources}
            for name, reach in plan.logs.items():
                if blamed(nodes[name].node, nodes[name].source.gives_up, reach.start, reach.end):
                    return False
            # settings may have changed since: a header, for example, is no record
            return all(self._counts_as_planned(plan, name) for name in plan.logs)
        return all(self._appender.state(name).next_offset >= span_of(plan, name).end for name in plan.logs)

    def _counts_as_planned(self, plan: Plan, source: str) -> bool:
        span, (splits,) = span_of(plan, source), self._splits([self._append(plan, source)], self._context.step_slots())
        return _count(splits) == span.end - span.start

    def _is_due(self, plan: Plan) -> bool:
        """Return whether its records are not logged yet: the log ends where the step begins."""
        ends = {name: self._appender.state(name) for name in plan.logs}
        return bool(ends) and all(
            (end.next_offset, end.position) == (span_of(plan, name).start, plan.logs[name].start)
            for name, end in ends.items()
        )

    def stage(self, plan: Plan) -> Staged | None:
        """Read, log, process and stage a step; return None if its records are already in the log.

        Raises like :meth:`Stager.stage`, and ``FatalError`` (``source.count_wrong``).
        """
        found = self._due(plan)
        if found is None:
            return None
        appends, tasks = found
        reached("before-log", self._context.name)
        requests = {one.node.id: LogRequest(one.folder.segment(one.segment), one.offset) for one in appends}
        staged = self._stager.stage(plan, tasks, log_requests=requests)
        if staged.failures:
            return staged  # none of it counts: the step is cut, and its shorter successor is logged
        for append in appends:
            append.node.verify(append.start, append.end)
        reached("after-log-stage", self._context.name)
        logged = [(append, _parts(append, staged.ledgers)) for append in appends]
        for append, parts in logged:
            _require_whole(append.node.node, span_of(plan, append.node.id), parts)
        # commit the log before the step can be prepared: the log consists only of files that the manifest names
        self._appender.commit(logged)
        reached("after-log", self._context.name)
        return staged._replace(tasks=_in_log(logged, staged.ledgers))

    def _due(self, plan: Plan) -> tuple[list[Append], Tasks] | None:
        planned, self._planned = self._planned, None
        if planned is not None and planned[0] == (plan.ranges, plan.logs):
            return planned[1:]
        if not self._is_due(plan):
            return None
        appends = [self._append(plan, name) for name in plan.logs]
        slots = self._context.step_slots()
        return appends, _tasks(appends, self._splits(appends, slots), slots)

    def _append(self, plan: Plan, source: str) -> Append:
        source_node = next(source_node for source_node in self._pipeline.sources if source_node.id == source)
        reach = plan.logs[source]
        return self._appender.to(source_node, reach.start, reach.end, span_of(plan, source).start)


def _count(splits: Sequence[Split]) -> int | None:
    """Return how many records the splits hold; None if one of them does not know it for certain."""
    if not splits or any(split.records is None or split.assumed for split in splits):
        return None
    return splits[-1].ordinal + (splits[-1].records or 0)


def _parts(append: Append, ledgers: Sequence[Ledger]) -> list[LogPart]:
    results = [one for ledger in ledgers for one in ledger.log_results if one.source == append.node.id]
    return parts_of(append, [(one.written, one.boundary) for one in results if one.written is not None])


def _tasks(appends: Sequence[Append], splits: Sequence[Sequence[Split]], slots: int) -> Tasks:
    pairs = zip(appends, splits, strict=True)
    return group([SplitOf(append.node.id, split) for append, mine in pairs for split in mine], slots)


def _require_whole(node: str, span: Range, parts: Sequence[LogPart]) -> None:
    count = sum(part.entries for part in parts)
    if count != span.end - span.start:
        raise FatalError(
            f"the source declared that a range holds {span.end - span.start} records, and gave {count}",
            code="source.count_wrong",
            node=node,
            fix="a split's records must be exact: leave them out (None) where the source can't know",
        )


def _in_log(logged: Sequence[tuple[Append, Sequence[LogPart]]], ledgers: Sequence[Ledger]) -> Tasks:
    """Return the records read by each task as splits of the log, for staging them again if parts are lost."""
    known = {(append.node.id, part.first): (append, part) for append, parts in logged for part in parts}
    return [
        [
            SplitOf(one.source, _split(*known[one.source, one.written.first], one.ordinal))
            for one in ledger.log_results
            if one.written is not None
        ]
        for ledger in ledgers
    ]


def _split(append: Append, part: LogPart, ordinal: int) -> Split:
    return log_split(append.folder, [part], part.first, part.next, ordinal)
