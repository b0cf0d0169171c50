"""Staging a prepared step again, because its staging was lost or its records are needed one by one."""

from __future__ import annotations

import msgspec
import structlog

from conduit_dagster import storage
from conduit_dagster.engine.delivery_progress import Shipment, as_delivery
from conduit_dagster.engine.reads_same import changed_source
from conduit_dagster.engine.stager import Staged, Stager, from_rows
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.sdk import MISCOUNTED, Delivery
from conduit_dagster.spark.jobs import JobCancelled
from conduit_dagster.state.lease import LeaseLost
from conduit_dagster.state.steps import Decision, Part, Plan, StagedDelivery

log = structlog.get_logger("conduit.engine")


class Restaged:
    """Stager of prepared steps, from the same splits; the decision does not change."""

    def __init__(self, context: StepContext, stager: Stager) -> None:
        self._context, self._stager = context, stager
        self._made: list[Staged] = []
        self._known: dict[tuple[int, str], Staged | None] = {}

    def again(self, plan: Plan, decision: Decision, missing: list[StagedDelivery]) -> list[StagedDelivery]:
        """Return the deliveries with new parts. Raises ``FatalError`` if their digests are not the prepared ones."""
        try:
            staged = self._stage(plan, decision)
        except FatalError as error:
            if error.code == MISCOUNTED:
                raise differs(plan, missing[0]) from error
            raise
        return [self._same(plan, old, staged) for old in missing]

    def _same(self, plan: Plan, old: StagedDelivery, staged: Staged) -> StagedDelivery:
        made = self._made_of(old, staged)
        if made is None:
            raise differs(plan, old)
        return made

    @staticmethod
    def _made_of(old: StagedDelivery, staged: Staged) -> StagedDelivery | None:
        """Return the delivery as staged again; None if its bytes differ from the prepared ones."""
        parts, origins = staged.parts(old.consumer), staged.origins(old.consumer)
        if [content(part) for part in (*parts, *origins)] != [content(part) for part in (*old.parts, *old.origins)]:
            return None
        return msgspec.structs.replace(old, staging=staged.staging[old.consumer], parts=parts, origins=origins)

    def gives_same(self, shipment: Shipment) -> bool:
        """Return whether source and code still produce the prepared bytes: True for a step prepared by this run.

        A step of an earlier run is staged again to find out, once.
        """
        return not shipment.is_recovered or self._verified(shipment) is not None

    def records(self, shipment: Shipment) -> Delivery | None:
        """Return a delivery of whole records, for a destination that does not stage them; staged at the first call.

        None if source, code or settings no longer produce the prepared bytes, or if the source can't be read.
        """
        old, staged = shipment.staged, self._verified(shipment)
        if staged is None:
            return None
        records = staged.records(old.consumer)
        if [part.records for part in records] != [part.records for part in old.parts]:
            return None
        folder = staged.staging[old.consumer]
        return as_delivery(msgspec.structs.replace(old, staging=folder, parts=records), shipment.plan.step)

    def _verified(self, shipment: Shipment) -> Staged | None:
        asked = shipment.plan.step, shipment.consumer
        if asked not in self._known:
            self._known[asked] = self._stage_verified(shipment)
        return self._known[asked]

    def _stage_verified(self, shipment: Shipment) -> Staged | None:
        plan, old = shipment.plan, shipment.staged
        try:
            # shares that are staged as whole records anyway are staged normally
            staged = self._stage(plan, shipment.decision, *([old.consumer] if old.origins else []))
        except (JobCancelled, LeaseLost):
            raise
        except (ConduitError, OSError) as error:
            log.info("a prepared step can't be read again", step=plan.step, consumer=old.consumer, cause=str(error))
            return None
        return staged if self._made_of(old, staged) is not None else None

    def _stage(self, plan: Plan, decision: Decision, *as_records: str) -> Staged:
        context = self._context
        if changed := changed_source(context.pipeline, plan, context.state):
            raise _unreadable(plan, changed, context.node(changed))
        tasks = self._stager.relocated(from_rows(decision.splits))
        staged = self._stager.stage(plan, tasks, as_records, again=True)
        self._made.append(staged)
        return staged

    def discard(self) -> None:
        """Remove everything that was staged again, once the step is done."""
        for staged in self._made:
            self._stager.discard(staged.staging)
        self._made.clear()
        self._known.clear()


def _unreadable(plan: Plan, source: str, node: str) -> FatalError:
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and the file removes or changes {source}, which it read",
        code="delivery.source_changed",
        node=node,
        fix="set the source, delivery.log and fan-in back, let the pipeline finish the step (run --once), then change",
    )


def differs(plan: Plan, old: StagedDelivery) -> FatalError:
    """Return the error for a prepared step whose lost staging can't be reproduced."""
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and staging it again gives other records for "
        f"{old.consumer}: a processor, a setting, the source or the version of conduit-dagster has changed",
        code="delivery.rebuild_differs",
        place=old.staging,
        fix="put the pipeline file, the plugins, the source and the version back as they were, run, then change them",
    )


def is_staged(delivery: StagedDelivery) -> bool:
    """Return whether all staged files of a delivery exist with the length that was prepared."""
    files = [*delivery.parts, *delivery.origins]
    return all(storage.size(storage.join(delivery.staging, part.name)) == part.bytes for part in files)


def content(part: Part) -> tuple[int, int, str]:
    """Return the properties of a part that must be equal when it is staged again: all but its name."""
    return part.records, part.bytes, part.sha256
