"""Line 1 of the protocol: a step's ranges, stored before any of their records is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.engine.plugin_results import latest_of
from conduit_dagster.engine.stage_job import Ledger
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.engine.step_log import StepLog
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Destination, Source
from conduit_dagster.state.pipeline_state import PipelineState, SourceState
from conduit_dagster.state.steps import LoggedRange, Plan, ProcessorState, Range, not_known


def planned_target(destination: Destination) -> dict[str, str | None]:
    """Return the identity of a destination in a prepared step; a path inside the project is relative to it."""
    address = destination.address
    target = address and storage.inside(address, destination.context.root)
    return {"plugin": destination.name, "target": target, "hashes": destination.hashes_at}


def is_target(planned: dict[str, str | None], destination: Destination) -> bool:
    """Return whether the destination is still the one of a plan; older plans do not say where hashes are.

    Raises ``FatalError`` (``state.version``) for a plan of a newer version that says more.
    """
    now = planned_target(destination)
    if unknown := sorted(planned.keys() - now.keys()):
        raise not_known(f"a target has `{unknown[0]}`")
    return all(now[key] == was for key, was in planned.items())


def next_offset(source: Source, known: SourceState) -> int:
    """Return the offset of a source's next record."""
    # a log entry keeps its offset, even if a rewind has moved the source
    return known.position if isinstance(source, LogSource) else known.records


class PlanCursor:
    """Position and offset of each source after all planned steps, including those that are not done."""

    def __init__(self, state: PipelineState) -> None:
        self.sources: dict[str, SourceState] = {name: copy(source) for name, source in state.sources.items()}
        self._last = state.last_plan.ranges[-1].source if state.last_plan and state.last_plan.ranges else None

    def planned(self, plan: Plan) -> None:
        """Advance the positions past a step."""
        for span in plan.ranges:
            self.sources[span.source].position = span.end
        self._last = plan.ranges[-1].source

    def staged(self, plan: Plan, ledgers: Sequence[Ledger]) -> None:
        """Advance the offsets past a step, whose records are counted once it is staged."""
        for span in plan.ranges:
            read = sum(ledger.sources[span.source].read for ledger in ledgers if span.source in ledger.sources)
            self.sources[span.source].records = span.offset + read

    def turns(self, sources: Sequence[str]) -> Sequence[str]:
        """Return the sources in the order in which they may be chosen next: after the last one (CASES D3)."""
        if self._last not in sources:
            return sources
        after = sources.index(self._last) + 1
        return [*sources[after:], *sources[:after]]


class StepPlanner:
    """Planner of one pipeline's steps. One thread plans; another may cut an earlier step meanwhile."""

    def __init__(self, context: StepContext, log: StepLog | None) -> None:
        self._context, self._log = context, log
        self._pipeline, self._store, self._reads = context.pipeline, context.store, context.pipeline.reads
        self._targets = {name: planned_target(destination) for name, destination in context.consumers.items()}
        self._planning = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Plan from the stored positions."""
        self._closed = False
        self.cursor = PlanCursor(self._context.state)

    # -- next step ----------------------------------------------------------------------------------------------

    def plan_next(self, horizons: Mapping[str, Any] | None) -> Plan | None:
        """Store a plan with a range per source that has new data; return None if no source has."""
        if self._closed:
            return None
        # destinations added later come first: nothing new is read before all have caught up (reference 4)
        only, ranges = self._missed() or ("", self._ranges(self._inputs_of(""), horizons))
        logs: dict[str, LoggedRange] = {}
        if not ranges and self._log is not None:
            ranges, logs = self._log.ahead(horizons, self.cursor.sources)
        return self._planned(ranges, only, logs) if ranges else None

    def plan_missed(self) -> Plan | None:
        """Store a plan for a destination that is catching up; None once all of them have caught up."""
        missed = self._missed()
        return None if missed is None else self._planned(missed[1], missed[0], {})

    def plan_replay(self) -> Plan | None:
        """Store a plan with a range per source whose dead letters are replayed; return None if none is left."""
        ranges = self._ranges([source_node.id for source_node in self._pipeline.inputs if source_node.is_replay], None)
        return self._planned(ranges, "", {}) if ranges else None

    def log_first(self) -> bool:
        """Log new records that could not be planned because steps read them from the log; return False if none."""
        return self._log is not None and not self._closed and self._log.log_first()

    def memory(self) -> dict[str, ProcessorState]:
        """Return the initial state of the stateful processors, by node."""
        if not self._pipeline.stateful:
            return {}
        state = self._context.state
        generations = {name: one.generation for name, one in state.sources.items() if not (one.late or one.is_replay)}
        return {node: state.memory.get(node, ProcessorState()).under(generations) for node in self._pipeline.stateful}

    def _planned(self, ranges: list[Range], only: str, logs: dict[str, LoggedRange]) -> Plan | None:
        replay = self._pipeline.replay_of(ranges[0].source)
        reached("before-plan", self._context.name)
        with self._planning:
            if self._closed:
                return None  # an earlier step was cut: nothing follows it in this run
            number, now, nacked, memory = self._take_number(), time.time_ns(), self._nacked(only, ranges), self.memory()
            plan = Plan(number, now, ranges, self._targets, {}, self._reads, only, nacked, logs, replay, memory)
            plan = self._context.hashes.with_hashes(plan)
            self._store.plan(plan)
        reached("after-plan", self._context.name)
        self.cursor.planned(plan)
        return plan

    def _take_number(self) -> int:
        state = self._context.state
        number = state.next_step
        state.next_step += 1
        return number

    # -- ranges -------------------------------------------------------------------------------------------------

    def _missed(self) -> tuple[str, list[Range]] | None:
        """Return a destination that is catching up, and its next ranges; None if all have caught up."""
        late = {name: source for name, source in self.cursor.sources.items() if source.late}
        ends = {name: one.unit["upto"] for name, one in late.items() if one.position < one.unit["upto"]}
        for consumer in self._context.consumers:
            if ranges := self._ranges([name for name in self._inputs_of(consumer) if name in ends], ends):
                return consumer, ranges
        return None

    def _inputs_of(self, only: str) -> list[str]:
        return [
            source_node.id
            for source_node in self._pipeline.inputs
            if source_node.only == only and not source_node.is_replay
        ]

    def _nacked(self, only: str, ranges: list[Range]) -> dict[str, list[int]]:
        """Return the offsets nacked by earlier steps, to be pinned in the plan.

        A step that is staged again must not mistake its own nacks for earlier ones.
        """
        if not only:
            return {}
        nacked = self._store.deliveries.nacked_offsets
        found: dict[str, list[int]] = {}
        for span in ranges:
            origin = self._pipeline.source_node(span.source).origin
            names = [one.id for one in self._pipeline.inputs if one.origin == origin]
            if offsets := nacked(names, span.start, span.end):
                found[span.source] = offsets
        return found

    def _ranges(self, inputs: list[str], horizons: Mapping[str, Any] | None) -> list[Range]:
        if self._pipeline.program.fan_in != "alternate":
            return [span for name in inputs if (span := self._range(name, horizons))]
        # one source per step; the choice is pinned, because a plan is never remade with other ranges
        for name in self.cursor.turns(inputs):
            if span := self._range(name, horizons):
                return [span]
        return []

    def _range(self, source: str, horizons: Mapping[str, Any] | None) -> Range | None:
        known, source_node = self.cursor.sources[source], self._pipeline.source_node(source)
        horizon = None if horizons is None else horizons.get(source)
        limit = self._context.settings.limit
        end = latest_of(source_node.node, source_node.source, known.position, limit, horizon)
        if end == known.position:
            return None
        offset = next_offset(source_node.source, known)
        return Range(source, known.generation, known.position, end, offset, source_node.origin)

    # -- cut step -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop planning in this run: a step will be cut, and nothing follows it."""
        with self._planning:
            self._closed = True

    def replace(self, plan: Plan, shorter: Plan) -> Plan | None:
        """Void a step and all later ones, and plan its shorter successor, in one transaction; None if that is empty."""
        with self._planning:
            self._closed = True
            successor = self._successor(shorter)
            reached("before-replan", self._context.name)
            # the step, every later one and the successor in one transaction
            self._store.replan(plan.step, successor)
            reached("after-replan", self._context.name)
        return successor

    def _successor(self, shorter: Plan) -> Plan | None:
        """Return a new step with these ranges that replaces a void one; None without ranges."""
        if not shorter.ranges:
            return None
        number, clock_ns = self._take_number(), time.time_ns()
        return self._context.hashes.with_hashes(msgspec.structs.replace(shorter, step=number, clock_ns=clock_ns))
