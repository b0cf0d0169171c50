"""Mutants: rules of the lines from plan to prepare, and of start-up recovery, removed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.engine import recover, stage
from conduit_dagster.engine import stager as staging
from conduit_dagster.engine.compiled_pipeline import compile_encoded
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.restage import Restaged, is_staged
from conduit_dagster.engine.stage_job import Ledger, StageJob
from conduit_dagster.engine.stager import Staged, Stager
from conduit_dagster.state.pipeline_state import OpenStep
from conduit_dagster.state.steps import Decision, Plan, StagedDelivery
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import deliveries

Patch = pytest.MonkeyPatch


def prepare(patch: Patch) -> None:
    """*Nothing is published before* prepare: here it is committed only when the step is done."""
    late: dict[int, Callable[[], None]] = {}
    prepare, done = PipelineStore.prepare, PipelineStore.done

    def postponed(self: PipelineStore, plan: Plan, *rest: Any) -> None:
        late[plan.step] = lambda: prepare(self, plan, *rest)

    def both(self: PipelineStore, plan: Plan, *rest: Any) -> None:
        late.pop(plan.step, lambda: None)()
        done(self, plan, *rest)

    patch.setattr(PipelineStore, "prepare", postponed)
    patch.setattr(PipelineStore, "done", both)


def digest(patch: Patch) -> None:
    """*Staging that is gone is rebuilt and must match the digests*: here any rebuilt staging is published."""

    def whatever(self: Restaged, plan: Plan, old: StagedDelivery, staged: Staged, ways: str) -> StagedDelivery:
        folder = staged.staging[old.consumer]
        return msgspec.structs.replace(old, staging=folder, parts=staged.share(old.consumer).parts)

    patch.setattr(Restaged, "_same", whatever)


def noreplan(patch: Patch) -> None:
    """*A prepared step is never planned anew*: here it is, if its staging is gone and nothing seems published."""
    finish = recover._finish

    def replanned(loop: StepLoop, step: OpenStep, decision: Decision) -> None:
        if all(is_staged(delivery) for delivery in decision.deliveries):
            finish(loop, step, decision)
            return
        mine = (deliveries.c.pipeline == "p", deliveries.c.step == step.plan.step)
        loop.context.store.transactions.run(lambda connection: connection.execute(sa.delete(deliveries).where(*mine)))
        loop.execute(step.plan)

    patch.setattr(recover, "_finish", replanned)


def holdsfirst(patch: Patch) -> None:
    """*Each destination is first asked whether it holds the delivery*: here none is, before staging is rebuilt."""
    patch.setattr(recover, "_holds", lambda context, plan, staged: False)


@contextmanager
def in_process(patch: Patch) -> Iterator[None]:
    """Stage tasks run here and not in Spark's workers, which a test can't reach. Not a mutant by itself."""

    def run(self: Stager, job: StageJob) -> list[Ledger]:
        program = self._context.program
        compile_encoded.cache_clear()
        return [stage.run_task(program, job, number) for number in range(len(job.tasks))]

    with patch.context() as inner:
        inner.setattr(Stager, "_run", run)
        yield


def token(patch: Patch) -> None:
    """*Staged names hold a random token per execution and are created exclusively*: here neither is true."""

    def folders(self: Stager, step: int) -> dict[str, str]:
        homes = self._homes.items()
        return {name: storage.join(home, f"{step:012d}", storage.safe_name(name)) for name, home in homes}

    def overwriting(url: str) -> Any:
        return Path(url).open("wb", buffering=0)

    patch.setattr(Stager, "_folders", folders)
    patch.setattr(stage, "secrets", staging.secrets)
    patch.setattr(stage.secrets, "token_hex", lambda size=None: "0" * 16)
    patch.setattr(storage, "create", overwriting)


def reack(patch: Patch) -> None:
    """*Every source is acked at its stored position* at a start: here none is."""
    patch.setattr(recover, "acknowledge", lambda context, acked=frozenset(): acked)


def reackfirst(patch: Patch) -> None:
    """The acks of a start come before the open steps: here they come after them."""
    acknowledge, recovering = recover.acknowledge, recover.recover

    def late(loop: StepLoop, plans: bool) -> Any:
        with pytest.MonkeyPatch.context() as no_acks:
            no_acks.setattr(recover, "acknowledge", lambda context, acked=frozenset(): acked)
            recovering(loop, plans)
        return acknowledge(loop.context)

    patch.setattr(recover, "recover", late)
