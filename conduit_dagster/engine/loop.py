"""The step loop: plan, stage, resolve, prepare, publish, done (DELIVERY.md, One step)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.delivery_progress import Shipment
from conduit_dagster.engine.error_context import blamed
from conduit_dagster.engine.ledger import NackRow
from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.engine.nack_window import NackWindow
from conduit_dagster.engine.naming import Names
from conduit_dagster.engine.offset_updates import joined_members
from conduit_dagster.engine.plan_cursor import PlanCursor
from conduit_dagster.engine.prepare import Preparer
from conduit_dagster.engine.publish import Publisher, identity
from conduit_dagster.engine.report import StepReport
from conduit_dagster.engine.resolve import Resolution, cut, cut_failed, refusal, resolve
from conduit_dagster.engine.restage import Restaged
from conduit_dagster.engine.stager import Staged, Stager
from conduit_dagster.engine.step_log import StepLog
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Limit, Position
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import Decision, LoggedRange, Memory, Plan, Range
from conduit_dagster.state.store import PipelineStore


class StepLoop:
    """One pipeline's steps in order. Not reusable after an error: start-up recovery must run first.

    One thread may plan and stage ahead while another finishes the earlier steps, one at a time.
    """

    def __init__(
        self,
        pipeline: CompiledPipeline,
        store: PipelineStore,
        state: PipelineState,
        stager: Stager,
        restaged: Restaged,
        publisher: Publisher,
        window: NackWindow,
        limit: Limit,
        log: StepLog | None,
        report: Callable[[StepReport], None],
    ) -> None:
        self.pipeline, self.store, self.state = pipeline, store, state
        self.stager, self.restaged, self.publisher = stager, restaged, publisher
        self._window, self._limit, self._log, self._report = window, limit, log, report
        self._names = Names(pipeline)
        self._preparer = Preparer(pipeline, store, state, stager)
        self._name = pipeline.program.pipeline
        self._planning = threading.Lock()
        self._closed = False
        self._began: dict[int, float] = {}
        self.tail = PlanCursor(state)

    # -- line 1 -------------------------------------------------------------------------------------------------

    def plan_next(self, horizons: dict[str, Any] | None) -> Plan | None:
        """Store a plan with a range per source that has new data; return None if no source has."""
        if self._closed:
            return None
        # destinations added later come first: nothing new is read before all have caught up (reference 4)
        only, ranges = self._missed() or ("", self._ranges(self._inlets_of(""), horizons))
        logs: dict[str, LoggedRange] = {}
        if not ranges and self._log is not None:
            ranges, logs = self._log.ahead(horizons, self.tail.sources)
        return self._planned(ranges, only, logs) if ranges else None

    def plan_replay(self) -> Plan | None:
        """Store a plan with a range per source whose dead letters are sent again; return None if none is left."""
        ranges = self._ranges([inlet.id for inlet in self.pipeline.inlets if inlet.is_replay], None)
        return self._planned(ranges, "", {}) if ranges else None

    def _planned(self, ranges: list[Range], only: str, logs: dict[str, LoggedRange]) -> Plan | None:
        replay = self.pipeline.replay_of(ranges[0].source)
        reached("before-plan", self._name)
        with self._planning:
            if self._closed:
                return None  # an earlier step was cut: nothing follows it in this run
            number, reads = self._take_number(), self.pipeline.reads
            nacked = self._nacked(only, ranges)
            plan = Plan(
                number, time.time_ns(), ranges, self._targets(), {}, reads, only, nacked, logs, replay, self.memory()
            )
            plan = self._names.named(plan)
            self.store.plan(plan)
        reached("after-plan", self._name)
        self.tail.planned(plan)
        return plan

    def memory(self) -> dict[str, Memory]:
        """Return the initial state of the stateful processors, by node."""
        sources = self.state.sources.items()
        generations = {name: one.generation for name, one in sources if not (one.late or one.is_replay)}
        return {node: self.state.memory.get(node, Memory()).under(generations) for node in self.pipeline.remembering}

    def _missed(self) -> tuple[str, list[Range]] | None:
        """Return a destination that is catching up, and its next ranges; None if there is none."""
        late = {name: source for name, source in self.tail.sources.items() if source.late}
        ends = {name: one.unit["upto"] for name, one in late.items() if one.position < one.unit["upto"]}
        for consumer in self.pipeline.consumers():
            if ranges := self._ranges([name for name in self._inlets_of(consumer) if name in ends], ends):
                return consumer, ranges
        return None

    def _inlets_of(self, only: str) -> list[str]:
        return [inlet.id for inlet in self.pipeline.inlets if inlet.only == only and not inlet.is_replay]

    def _nacked(self, only: str, ranges: list[Range]) -> dict[str, list[int]]:
        """Return offsets nacked by earlier steps, to be pinned in the plan.

        A step that is staged again must not mistake its own nacks for earlier ones.
        """
        if not only:
            return {}
        nacked = self.store.deliveries.nacked_offsets
        same = {span.source: self._same_origin(span.source) for span in ranges}
        found = {span.source: nacked(same[span.source], span.start, span.end) for span in ranges}
        return {name: offsets for name, offsets in found.items() if offsets}

    def _same_origin(self, source: str) -> list[str]:
        origin = self.pipeline.inlet(source).origin
        return [inlet.id for inlet in self.pipeline.inlets if inlet.origin == origin]

    def _ranges(self, inlets: list[str], horizons: dict[str, Any] | None) -> list[Range]:
        if self.pipeline.program.fan_in != "alternate":
            return [span for name in inlets if (span := self._range(name, horizons))]
        # one source per step; the choice is pinned, because a plan is never remade with other ranges
        for name in self.tail.turns(inlets):
            if span := self._range(name, horizons):
                return [span]
        return []

    def _range(self, source: str, horizons: dict[str, Any] | None) -> Range | None:
        known = self.tail.sources[source]
        horizon = None if horizons is None else horizons.get(source)
        end = self._latest(source, known.position, horizon)
        if end == known.position:
            return None
        # a log entry keeps its offset, even if a rewind has moved the source
        inlet = self.pipeline.inlet(source)
        logged = isinstance(inlet.source, LogSource)
        offset = known.position if logged else known.records
        return Range(source, known.generation, known.position, end, offset, inlet.origin)

    def _latest(self, source: str, start: Position, horizon: Any) -> Position:
        inlet = self.pipeline.inlet(source)
        return blamed(self.node(source), inlet.source.latest, start, self._limit, horizon)

    def node(self, connector: str) -> str:
        """Return a connector's id prefixed with the pipeline's."""
        return f"{self._name}:{connector}"

    def _take_number(self) -> int:
        number = self.state.next_step
        self.state.next_step += 1
        return number

    def _targets(self) -> dict[str, dict[str, str | None]]:
        return {name: identity(destination) for name, destination in self.pipeline.consumers().items()}

    def log_first(self) -> bool:
        """Log new records that could not be planned because a step reads them from the log; False if there are none."""
        return self._log is not None and not self._closed and self._log.log_first()

    # -- line 3 -------------------------------------------------------------------------------------------------

    def stage(self, plan: Plan) -> Staged:
        """Read, process and stage a planned step; also log it if its plan says so."""
        self._began[plan.step] = time.monotonic()
        staged = self._staged(plan)
        if staged.failures:
            with self._planning:
                self._closed = True  # it will be cut: nothing follows it in this run
        self.tail.staged(plan, staged.ledgers)
        return staged

    def _staged(self, plan: Plan) -> Staged:
        logged = self._log.stage(plan) if self._log is not None else None
        return logged or self.stager.stage(plan)

    def can_stage(self, plan: Plan) -> bool:
        """Return whether a step planned by an earlier run can be staged: its records are, or will be, in the log."""
        return self._log is None or self._log.can_stage(plan)

    # -- lines 4 to 7 -------------------------------------------------------------------------------------------

    def execute(self, plan: Plan) -> None:
        """Run a planned step through all remaining lines of the protocol."""
        self.finish(plan, self.stage(plan))

    def finish(self, plan: Plan, staged: Staged) -> None:
        """Run a staged step through the remaining lines. Call it only when every earlier step is done.

        If the window does not accept a nack, its error is raised after everything before the nack is done and acked.
        """
        started = self._began.pop(plan.step)
        plan, staged, resolution, refused = self._resolved(plan, staged)
        decision = self._preparer.prepare(plan, staged, resolution)
        self.publisher.publish([Shipment(plan, decision, delivery) for delivery in decision.deliveries])
        self.complete(plan, decision, resolution.nacks, started)
        self.stager.discard(staged.staging)
        if refused is not None:
            raise refused

    def _resolved(self, plan: Plan, staged: Staged) -> tuple[Plan, Staged, Resolution, ConduitError | None]:
        refused: ConduitError | None = None
        while True:
            if staged.failures:
                # records read before the failure are delivered: each restart gets at least as far as the last run
                refused = staged.failures[0].error.as_error()
                shorter = cut_failed(plan, staged.failures, self._within, self._read_within)
            else:
                resolution = resolve(plan, staged.ledgers, self._window, self.state.window)
                if resolution.refused is None:
                    return plan, staged, resolution, refused
                refused = refusal(resolution.refused, self._window)
                ranges = cut(plan, resolution.refused, self._within)
                shorter = msgspec.structs.replace(plan, ranges=ranges, logs={})
            self.stager.discard(staged.staging)
            plan = self._cut(plan, shorter, refused)
            staged = self._staged(plan)

    def _cut(self, plan: Plan, shorter: Plan, refused: ConduitError) -> Plan:
        with self._planning:
            self._closed = True
            successor = self._successor(shorter)
            reached("before-replan", self._name)
            # the step, every later one and the successor in one transaction
            self.store.replan(plan.step, successor)
            reached("after-replan", self._name)
        if successor is None:
            raise refused
        return successor

    def _successor(self, shorter: Plan) -> Plan | None:
        """Return a new step with these ranges that replaces a void one; None if there are no ranges."""
        if not shorter.ranges:
            return None
        return self._names.named(msgspec.structs.replace(shorter, step=self._take_number(), clock_ns=time.time_ns()))

    def _within(self, span: Range, boundary: Any) -> Any:
        return self.pipeline.inlet(span.source).source.within(span.start, span.end, boundary)

    def _read_within(self, source: str, reach: LoggedRange, boundary: Any) -> Any:
        """Like :meth:`_within`, but for the source itself when steps read its log."""
        inlet = next(inlet for inlet in self.pipeline.sources if inlet.id == source)
        return inlet.source.within(reach.start, reach.end, boundary)

    def complete(
        self,
        plan: Plan,
        decision: Decision,
        nacks: list[NackRow],
        started: float,
        void: frozenset[str] = frozenset(),
    ) -> None:
        """Run line 7, update the in-memory state, and report the step; ``started`` is on the monotonic clock.

        ``void``: consumers that were retired while their delivery was open.
        """
        self.publisher.finish(plan, decision, void)
        self.state.finished(plan, decision)
        refused = self.publisher.refusals.take_rows()
        seconds = time.monotonic() - started
        self._report(StepReport.of(plan, decision, nacks, refused, seconds, joined_members(plan)))
        self.restaged.discard()
        self.stager.memories.forget(plan.memory, decision.memory)
