"""A prepared step staged once more: where its staging was lost, or its records are needed one by one."""

from __future__ import annotations

import msgspec
import structlog

from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.reads_same import changed_source
from conduit_dagster.engine.shipment import Shipment, as_delivery
from conduit_dagster.engine.staging import Staged, Stager, from_rows
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.sdk import Delivery
from conduit_dagster.spark.jobs import JobCancelled
from conduit_dagster.state.lease import LeaseLost
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import Decision, Part, Plan, StagedDelivery

log = structlog.get_logger("conduit.engine")


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
        made = self._made_of(old, staged)
        if made is None:
            raise differs(plan, old)
        return made

    @staticmethod
    def _made_of(old: StagedDelivery, staged: Staged) -> StagedDelivery | None:
        """The delivery as it was staged again; None where that gave other bytes than were prepared."""
        parts, origins = staged.parts(old.consumer), staged.origins(old.consumer)
        if [content(part) for part in (*parts, *origins)] != [content(part) for part in (*old.parts, *old.origins)]:
            return None
        return msgspec.structs.replace(old, staging=staged.staging[old.consumer], parts=parts, origins=origins)

    def records(self, shipment: Shipment) -> Delivery | None:
        """A delivery's whole records, whatever its destination stages.

        None where source, code or settings do not give the bytes any more that were prepared, or can't be read.
        """
        plan, old = shipment.plan, shipment.staged
        try:
            staged = self._stage(plan, shipment.decision, old.consumer)
        except (JobCancelled, LeaseLost):
            raise
        except (ConduitError, OSError) as error:
            log.info("a prepared step can't be read again", step=plan.step, consumer=old.consumer, cause=str(error))
            return None
        records = staged.records(old.consumer)
        same = self._made_of(old, staged) is not None
        if not same or [part.records for part in records] != [part.records for part in old.parts]:
            return None
        folder = staged.staging[old.consumer]
        return as_delivery(msgspec.structs.replace(old, staging=folder, parts=records), plan.step)

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


def differs(plan: Plan, old: StagedDelivery) -> FatalError:
    """A prepared step whose staging is gone, and can't be made again as it was."""
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and staging it again gives other records for "
        f"{old.consumer}: a processor, a setting or the source has changed",
        code="delivery.rebuild_differs",
        place=old.staging,
        fix="put the pipeline file, the plugins and the source back as they were, run, then change them",
    )


def content(part: Part) -> tuple[int, int, str]:
    """What must be the same when a part is staged once more; its name is not."""
    return part.records, part.bytes, part.sha256
