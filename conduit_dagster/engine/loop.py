"""The step loop: plan, stage, resolve, prepare, publish, done (DELIVERY.md, One step)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from conduit_dagster.connectors.base import Limit, Position
from conduit_dagster.engine.compiled import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.hashes import delivery_hash
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.engine.ledger import NackRow
from conduit_dagster.engine.nack_window import NackWindow
from conduit_dagster.engine.publish import Publisher, blamed, identity
from conduit_dagster.engine.report import StepReport
from conduit_dagster.engine.resolve import Resolution, cut, refusal, resolve
from conduit_dagster.engine.staging import Staged, Stager, as_rows
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.state.steps import DeadLetter, Decision, Plan, Range, StagedDelivery
from conduit_dagster.state.store import PipelineState, PipelineStore


class StepLoop:
    """One pipeline's steps, one after another. Not safe to call again after an error: start-up recovery comes first."""

    def __init__(
        self,
        pipeline: CompiledPipeline,
        store: PipelineStore,
        stager: Stager,
        window: NackWindow,
        limit: Limit,
        report: Callable[[StepReport], None],
    ) -> None:
        self.pipeline = pipeline
        self.store = store
        self.stager = stager
        self.publisher = Publisher(pipeline, store)
        self._window = window
        self._limit = limit
        self._report = report
        self.state: PipelineState = store.load()

    # -- line 1 -------------------------------------------------------------------------------------------------

    def plan_next(self, horizons: dict[str, Any] | None) -> Plan | None:
        """Records a range per source that has something new; None where no source has."""
        ranges = [span for inlet in self.pipeline.inlets if (span := self._range(inlet.id, horizons))]
        if not ranges:
            return None
        plan = Plan(self._take_number(), time.time_ns(), ranges, self._targets())
        reached("before-plan")
        self.store.plan(plan)
        reached("after-plan")
        return plan

    def _range(self, source: str, horizons: dict[str, Any] | None) -> Range | None:
        known = self.state.sources[source]
        horizon = None if horizons is None else horizons[source]
        end = self._latest(source, known.position, horizon)
        if end == known.position:
            return None
        return Range(source, known.generation, known.position, end, known.records)

    def _latest(self, source: str, start: Position, horizon: Any) -> Position:
        inlet = self.pipeline.inlet(source)
        return blamed(self.node(source), inlet.source.latest, start, self._limit, horizon)

    def node(self, connector: str) -> str:
        """A connector's id with the pipeline's."""
        return f"{self.pipeline.program.pipeline}:{connector}"

    def _take_number(self) -> int:
        number = self.state.next_step
        self.state.next_step += 1
        return number

    def _targets(self) -> dict[str, dict[str, str | None]]:
        return {name: identity(destination) for name, destination in self.pipeline.consumers().items()}

    # -- lines 3 to 7 -------------------------------------------------------------------------------------------

    def execute(self, plan: Plan) -> None:
        """Takes a planned step through all the lines.

        Raises, once everything before it is done and acked, the error of a nack that the window does not accept.
        """
        started = time.monotonic()
        plan, staged, resolution, refused = self._stage_and_resolve(plan)
        decision = self._prepare(plan, staged, resolution)
        self.publisher.publish(plan, decision.deliveries)
        self.complete(plan, decision, resolution.nacks, started)
        self.stager.discard(staged.staging)
        if refused is not None:
            raise refused

    def _stage_and_resolve(self, plan: Plan) -> tuple[Plan, Staged, Resolution, ConduitError | None]:
        refused: ConduitError | None = None
        while True:
            staged = self.stager.stage(plan)
            resolution = resolve(plan, staged.ledgers, self._window, self.state.window)
            if resolution.refused is None:
                return plan, staged, resolution, refused
            refused = refusal(resolution.refused, self._window)
            self.stager.discard(staged.staging)
            plan = self._cut(plan, resolution.refused, refused)

    def _cut(self, plan: Plan, row: NackRow, refused: ConduitError) -> Plan:
        successor = cut(plan, row, self._within, self.state.next_step, time.time_ns())
        if successor is not None:
            self.state.next_step += 1
        reached("before-replan")
        self.store.replan(plan.step, successor)
        reached("after-replan")
        if successor is None:
            raise refused
        return successor

    def _within(self, span: Range, boundary: Any) -> Any:
        return self.pipeline.inlet(span.source).source.within(span.start, span.end, boundary)

    def _prepare(self, plan: Plan, staged: Staged, resolution: Resolution) -> Decision:
        deliveries = [self._delivery(plan, staged, name) for name in self.pipeline.consumers()]
        decision = Decision(
            as_rows(staged.tasks),
            resolution.counts,
            deliveries,
            resolution.window,
            _added(ledger.filtered for ledger in staged.ledgers),
            _added(ledger.nacked for ledger in staged.ledgers),
        )
        self.stager.sync(staged.staging, [delivery.consumer for delivery in deliveries if delivery.parts])
        reached("before-prepare")
        self.store.prepare(plan, decision, self._letters(plan, resolution.nacks))
        reached("after-prepare")
        self.state.window = resolution.window
        return decision

    def _delivery(self, plan: Plan, staged: Staged, consumer: str) -> StagedDelivery:
        parts = staged.parts(consumer)
        kind = "dlq" if consumer == DEAD_LETTERS else "data"
        name = delivery_hash(
            kind=kind,
            pipeline=self.pipeline.program.pipeline,
            destination=consumer,
            sources=[self._named(span) for span in plan.ranges],
        )
        target = self._target(consumer) if parts else {}
        return StagedDelivery(consumer, kind, name, staged.staging[consumer], parts, target)

    def _named(self, span: Range) -> dict[str, Any]:
        place = self.pipeline.inlet(span.source).source.place
        return {
            "source": span.source,
            "generation": span.generation,
            "start": place(span.start),
            "end": place(span.end),
        }

    def _target(self, consumer: str) -> dict[str, Any]:
        destination = self.pipeline.consumers()[consumer]
        return blamed(self.node(consumer), destination.target, self.state.targets.get(consumer))

    def _letters(self, plan: Plan, nacks: list[NackRow]) -> list[DeadLetter]:
        spans = {span.source: span for span in plan.ranges}
        return [
            DeadLetter(
                row.source, spans[row.source].generation, row.position, spans[row.source].offset + row.ordinal,
                row.node, row.code, row.message,
            )
            for row in nacks
        ]  # fmt: skip

    def complete(self, plan: Plan, decision: Decision, nacks: list[NackRow], started: float) -> None:
        """Line 7, what memory knows of it, and the report; ``started`` on the monotonic clock."""
        self.publisher.finish(plan, decision)
        self._report(StepReport.of(plan, decision, nacks, time.monotonic() - started))
        fresh = self.store.load()
        self.state.sources, self.state.targets = fresh.sources, fresh.targets


def _added(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return total
