"""A prepared step staged once more: where its staging was lost, or its records are needed one by one."""

from __future__ import annotations

import msgspec

from conduit_dagster.connectors.base import Delivery
from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.reads_same import changed_source
from conduit_dagster.engine.shipment import Shipment, as_delivery
from conduit_dagster.engine.staging import Staged, Stager, from_rows
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import Decision, Part, Plan, StagedDelivery


class Restaged:
    """Stages prepared steps again from the same splits; the decision does not change by it."""

    def __init__(self, pipeline: CompiledPipeline, state: PipelineState, stager: Stager) -> None:
        self._pipeline, self._state, self._stager = pipeline, state, stager
        self._made: list[Staged] = []

    def again(self, plan: Plan, decision: Decision, missing: list[StagedDelivery]) -> list[StagedDelivery]:
        """The deliveries with new parts, whose digests are those that were prepared. Raises ``FatalError`` else."""
        staged = self._stage(plan, decision)
        return [self._same(plan, old, staged) for old in missing]

    def _same(self, plan: Plan, old: StagedDelivery, staged: Staged) -> StagedDelivery:
        parts = staged.parts(old.consumer)
        if [_content(part) for part in parts] != [_content(part) for part in old.parts]:
            raise _differs(plan, old)
        return msgspec.structs.replace(old, staging=staged.staging[old.consumer], parts=parts)

    def records(self, shipment: Shipment) -> Delivery:
        """A delivery's records with their origins, whatever its destination stages."""
        plan, old = shipment.plan, shipment.staged
        staged = self._stage(plan, shipment.decision, old.consumer)
        parts = staged.parts(old.consumer)
        if [part.records for part in parts] != [part.records for part in old.parts]:
            raise _differs(plan, old)
        folder = staged.staging[old.consumer]
        return as_delivery(msgspec.structs.replace(old, staging=folder, parts=parts), plan.step)

    def _stage(self, plan: Plan, decision: Decision, *as_records: str) -> Staged:
        if changed := changed_source(self._pipeline, plan, self._state):
            raise _unreadable(plan, changed, self._pipeline.program.pipeline)
        tasks = self._stager.relocated(from_rows(decision.splits))
        staged = self._stager.stage(plan, tasks, as_records, again=True)
        self._made.append(staged)
        return staged

    def discard(self) -> None:
        """Removes what was staged again, once the step is done."""
        for staged in self._made:
            self._stager.discard(staged.staging)
        self._made.clear()


def _unreadable(plan: Plan, source: str, pipeline: str) -> FatalError:
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and the file removes or changes {source}, which it read",
        code="delivery.source_changed",
        node=f"{pipeline}:{source}",
        fix="set the source, delivery.log and fan-in back, let the pipeline finish the step (run --once), then change",
    )


def _differs(plan: Plan, old: StagedDelivery) -> FatalError:
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and staging it again gives other records for "
        f"{old.consumer}: a processor, a setting or the source has changed",
        code="delivery.rebuild_differs",
        place=old.staging,
        fix="put the pipeline file, the plugins and the source back as they were, run, then change them",
    )


def _content(part: Part) -> tuple[int, int, str]:
    return part.records, part.bytes, part.sha256
