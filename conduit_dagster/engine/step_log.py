"""Lines 1 to 3 of the protocol where a step's records are logged as it is staged: the source is read once for both.

For sources that know how many records a range holds before they read it: the step's offsets, and with them its delivery
hashes, are fixed in its plan. Others are logged first (``appender.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from conduit_dagster.connectors.base import Position
from conduit_dagster.engine.appender import Appender, Logged
from conduit_dagster.engine.blame import blamed
from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.inlets import Inlet
from conduit_dagster.engine.log_source import LogSource, log_split
from conduit_dagster.engine.stage import SplitOf
from conduit_dagster.engine.staging import Staged, Stager
from conduit_dagster.engine.teed import Teed, TeeTo
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.log_store import LogPart
from conduit_dagster.state.pipeline_state import SourceState
from conduit_dagster.state.steps import Plan, Range, Reach


class Ahead(NamedTuple):
    """What is new of the sources: where it will lie in the log, and where it lies in the sources themselves."""

    ranges: list[Range]
    logs: dict[str, Reach]


class StepLog:
    """Plans and stages the steps of one pipeline that are logged on the way."""

    def __init__(self, pipeline: CompiledPipeline, appender: Appender, stager: Stager, slots: int) -> None:
        self._pipeline, self._appender, self._stager, self._slots = pipeline, appender, stager, slots
        self._name = pipeline.program.pipeline
        self.idle = False
        """Whether no source had anything new when it was asked last."""

    @staticmethod
    def fits(pipeline: CompiledPipeline) -> bool:
        """Whether steps of the pipeline can be logged so: each holds all that was new of sources that can be repeated.

        A join pairs what was logged before, and of several sources ``alternate`` takes one at a time.
        """
        program = pipeline.program
        whole = program.fan_in == "merge" or (program.fan_in == "alternate" and len(program.sources) == 1)
        return program.log == "records" and whole and all(inlet.source.replayable for inlet in pipeline.sources)

    # -- line 1 -------------------------------------------------------------------------------------------------

    def ahead(self, horizons: Mapping[str, Any] | None, known: Mapping[str, SourceState]) -> Ahead:
        """Empty where there is nothing new, or a source does not know how many records that is."""
        found = Ahead([], {})
        reaches = [reach for inlet in self._pipeline.sources if (reach := self._appender.reach(inlet, horizons))]
        self.idle = not reaches
        for reach in reaches:
            count = self._count(reach.inlet, reach.start, reach.end)
            if not count:
                return Ahead([], {})
            name, end = reach.inlet.id, reach.offset + count
            found.ranges.append(Range(name, known[name].generation, reach.offset, end, reach.offset))
            found.logs[name] = Reach(reach.start, reach.end)
        return found

    def _count(self, inlet: Inlet, start: Position, end: Position) -> int | None:
        splits = blamed(self._node(inlet.id), inlet.source.split, start, end, self._slots)
        if not splits or any(split.records is None for split in splits):
            return None
        return splits[-1].ordinal + (splits[-1].records or 0)

    # -- lines 2 and 3 ------------------------------------------------------------------------------------------

    def is_due(self, plan: Plan) -> bool:
        """Whether its records are not in the log, which ends where it begins."""
        if not plan.logs:
            return False
        ends = [self._log_of(span.source).manifest.state() for span in plan.ranges]
        begins = [(span.start, plan.logs[span.source].start) for span in plan.ranges]
        return begins == [(end.next_offset, end.position) for end in ends]

    def gives_up(self, plan: Plan) -> bool:
        """As of :meth:`Source.gives_up`, of a step that is due."""
        return any(self._log_of(name).real.gives_up(reach.start, reach.end) for name, reach in plan.logs.items())

    def stage(self, plan: Plan) -> Staged:
        """Reads, logs, processes and stages a step that is due. Raises as :meth:`Stager.stage`."""
        reached("before-log", self._name)
        logged = {span.source: self._to(plan, span) for span in plan.ranges}
        tees = {name: TeeTo(one.folder.segment(one.segment), one.offset) for name, one in logged.items()}
        staged = self._stager.stage(plan, tees=tees)
        reached("after-log-stage", self._name)
        parts = {name: self._parts(one, staged) for name, one in logged.items()}
        for span in plan.ranges:
            _require_whole(self._node(span.source), span, parts[span.source])
        # the log is committed before the step can be prepared: it covers only what the manifest names
        self._appender.commit([(one, parts[name]) for name, one in logged.items()])
        reached("after-log", self._name)
        return staged._replace(tasks=self._in_log(staged, logged, parts))

    def _to(self, plan: Plan, span: Range) -> Logged:
        reach, inlet = plan.logs[span.source], self._source_of(span.source)
        return self._appender.to(inlet, reach.start, reach.end)

    def _parts(self, logged: Logged, staged: Staged) -> list[LogPart]:
        name = logged.inlet.id
        teed = [one for ledger in staged.ledgers for one in ledger.teed if one.source == name and one.written]
        return [self._part(logged, one, one is teed[-1]) for one in teed]

    def _part(self, logged: Logged, teed: Teed, last: bool) -> LogPart:
        assert teed.written is not None
        source, start, end = logged.inlet.source, logged.start, logged.end
        return teed.written.appended(logged.segment, end if last else source.within(start, end, teed.boundary))

    def _in_log(
        self, staged: Staged, logged: Mapping[str, Logged], parts: Mapping[str, Sequence[LogPart]]
    ) -> list[list[SplitOf]]:
        """What each task has read, as it is read from the log when its parts are lost."""
        known = {(name, part.first): part for name, found in parts.items() for part in found}
        return [
            [
                SplitOf(one.source, self._split(logged[one.source], known[one.source, one.written.first], one.ordinal))
                for one in ledger.teed
                if one.written is not None
            ]
            for ledger in staged.ledgers
        ]

    def _split(self, logged: Logged, part: LogPart, ordinal: int) -> Any:
        return log_split(logged.folder, [part], part.first, part.next, ordinal)

    def _source_of(self, name: str) -> Inlet:
        return next(inlet for inlet in self._pipeline.sources if inlet.id == name)

    def _log_of(self, name: str) -> LogSource:
        source = self._pipeline.inlet(name).source
        assert isinstance(source, LogSource)
        return source

    def _node(self, source: str) -> str:
        return f"{self._name}:{source}"


def _require_whole(node: str, span: Range, parts: Sequence[LogPart]) -> None:
    count = sum(part.entries for part in parts)
    if count != span.end - span.start:
        raise FatalError(
            f"the source said that a range holds {span.end - span.start} records, and gave {count}",
            code="source.count_wrong",
            node=node,
            fix="a split's records must be exact: leave them out (None) where the source can't know",
        )
