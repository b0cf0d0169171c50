"""The step loop: plan, stage, resolve, prepare, publish, done (DELIVERY.md, One step)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from conduit_dagster.engine.blame import blamed
from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.ledger import NackRow
from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.engine.moves import joined_members
from conduit_dagster.engine.nack_window import NackWindow
from conduit_dagster.engine.naming import Names
from conduit_dagster.engine.prepare import Preparer
from conduit_dagster.engine.publish import Publisher, identity
from conduit_dagster.engine.report import StepReport
from conduit_dagster.engine.resolve import Resolution, cut, cut_failed, refusal, resolve
from conduit_dagster.engine.restage import Restaged
from conduit_dagster.engine.shipment import Shipment
from conduit_dagster.engine.staging import Staged, Stager
from conduit_dagster.engine.step_log import StepLog
from conduit_dagster.engine.tail import Tail
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Limit, Position
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import Decision, Memory, Plan, Range, Reach
from conduit_dagster.state.store import PipelineStore


class StepLoop:
    """One pipeline's steps in order. Not safe to call again after an error: start-up recovery comes first.

    One thread may plan and stage ahead while another finishes the steps before, one after the other.
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
        self.tail = Tail(state)

    # -- line 1 -------------------------------------------------------------------------------------------------

    def plan_next(self, horizons: dict[str, Any] | None) -> Plan | None:
        """Records a range per source that has something new; None where no source has."""
        if self._closed:
            return None
        # who was added later comes first: nothing new is read before all have caught up (reference 4)
        only, ranges = self._missed() or ("", self._ranges(self._inlets_of(""), horizons))
        logs: dict[str, Reach] = {}
        if not ranges and self._log is not None:
            ranges, logs = self._log.ahead(horizons, self.tail.sources)
        return self._planned(ranges, only, logs) if ranges else None

    def plan_replay(self) -> Plan | None:
        """Records a range per source whose dead letters are sent again; None where none is left."""
        ranges = self._ranges([inlet.id for inlet in self.pipeline.inlets if inlet.is_replay], None)
        return self._planned(ranges, "", {}) if ranges else None

    def _planned(self, ranges: list[Range], only: str, logs: dict[str, Reach]) -> Plan | None:
        replay = self.pipeline.replay_of(ranges[0].source)
        reached("before-plan", self._name)
        with self._planning:
            if self._closed:
                return None  # a step before was cut: nothing follows it in this run
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
        """What the processors that remember begin with, by node."""
        sources = self.state.sources.items()
        generations = {name: one.generation for name, one in sources if not (one.late or one.is_replay)}
        return {node: self.state.memory.get(node, Memory()).under(generations) for node in self.pipeline.remembering}

    def _missed(self) -> tuple[str, list[Range]] | None:
        """A destination that catches up, and what it gets next."""
        late = {name: source for name, source in self.tail.sources.items() if source.late}
        ends = {name: one.unit["upto"] for name, one in late.items() if one.position < one.unit["upto"]}
        for consumer in self.pipeline.consumers():
            if ranges := self._ranges([name for name in self._inlets_of(consumer) if name in ends], ends):
                return consumer, ranges
        return None

    def _inlets_of(self, only: str) -> list[str]:
        return [inlet.id for inlet in self.pipeline.inlets if inlet.only == only and not inlet.is_replay]

    def _nacked(self, only: str, ranges: list[Range]) -> dict[str, list[int]]:
        """Pinned with the plan: a step that is staged again must not take its own nacks for earlier ones."""
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
        # one source per step; the choice is pinned, because a plan is never made again with other ranges
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
        # an entry of the log has its offset, wherever a rewind has put the source
        inlet = self.pipeline.inlet(source)
        logged = isinstance(inlet.source, LogSource)
        offset = known.position if logged else known.records
        return Range(source, known.generation, known.position, end, offset, inlet.origin)

    def _latest(self, source: str, start: Position, horizon: Any) -> Position:
        inlet = self.pipeline.inlet(source)
        return blamed(self.node(source), inlet.source.latest, start, self._limit, horizon)

    def node(self, connector: str) -> str:
        """A connector's id with the pipeline's."""
        return f"{self._name}:{connector}"

    def _take_number(self) -> int:
        number = self.state.next_step
        self.state.next_step += 1
        return number

    def _targets(self) -> dict[str, dict[str, str | None]]:
        return {name: identity(destination) for name, destination in self.pipeline.consumers().items()}

    def log_first(self) -> bool:
        """Logs what is new and could not be planned, because a step reads it from the log; False where nothing is."""
        return self._log is not None and not self._closed and self._log.log_first()

    # -- line 3 -------------------------------------------------------------------------------------------------

    def stage(self, plan: Plan) -> Staged:
        """Reads, processes and stages a planned step; logs it as well where its plan says so."""
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
        """Of a step that a run before planned: whether what it reads is in the log, or comes into it so."""
        return self._log is None or self._log.can_stage(plan)

    # -- lines 4 to 7 -------------------------------------------------------------------------------------------

    def execute(self, plan: Plan) -> None:
        """Takes a planned step through all the lines."""
        self.finish(plan, self.stage(plan))

    def finish(self, plan: Plan, staged: Staged) -> None:
        """Takes a staged step through the rest of the lines, once every step before it is done.

        Raises, once everything before it is done and acked, the error of a nack that the window does not accept.
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
                # what was read before the failure is delivered: at each restart the run comes as far, or further
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
        """A step of these ranges in the place of one that is void; None where there are none."""
        if not shorter.ranges:
            return None
        return self._names.named(msgspec.structs.replace(shorter, step=self._take_number(), clock_ns=time.time_ns()))

    def _within(self, span: Range, boundary: Any) -> Any:
        return self.pipeline.inlet(span.source).source.within(span.start, span.end, boundary)

    def _read_within(self, source: str, reach: Reach, boundary: Any) -> Any:
        """As :meth:`_within`, of the source itself where steps read its log."""
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
        """Line 7, what memory knows of it, and the report; ``started`` on the monotonic clock.

        ``void``: consumers that were retired with their delivery open.
        """
        self.publisher.finish(plan, decision, void)
        self.state.finished(plan, decision)
        refused = self.publisher.refusals.take_rows()
        seconds = time.monotonic() - started
        self._report(StepReport.of(plan, decision, nacks, refused, seconds, joined_members(plan)))
        self.restaged.discard()
        self.stager.memories.forget(plan.memory, decision.memory)
