"""Mutants: rules of steps that follow each other, removed one by one."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from conduit_dagster.engine import recover
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.stager import Staged
from conduit_dagster.state.steps import Plan
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import steps

Patch = pytest.MonkeyPatch


def _void(store: PipelineStore, which: sa.ColumnElement[bool]) -> None:
    mine = (steps.c.pipeline == "p", steps.c.state == "planned", which)
    store.transactions.run(lambda connection: connection.execute(sa.update(steps).where(*mine).values(state="void")))


def cut(patch: Patch) -> None:
    """A step is voided *and, in the same transaction, its successor is planned*: here the one after the other."""

    def replan(self: PipelineStore, void: int, successor: Plan | None) -> None:
        self.void(void)
        if successor is not None:
            self.plan(successor)

    patch.setattr(PipelineStore, "replan", replan)


def cutplanfirst(patch: Patch) -> None:
    """As ``cut``, the successor first; and recovery does not check whether a planned step still fits."""

    def replan(self: PipelineStore, void: int, successor: Plan | None) -> None:
        if successor is not None:
            self.plan(successor)
        last = 10**9 if successor is None else successor.step
        _void(self, (steps.c.step >= void) & (steps.c.step < last))

    patch.setattr(PipelineStore, "replan", replan)
    _trusting(patch)


def cutvoidlater(patch: Patch) -> None:
    """*When n is cut, all later steps are void, in the transaction that cuts it*: here only n is; and as above."""

    def replan(self: PipelineStore, void: int, successor: Plan | None) -> None:
        def work(connection: sa.Connection) -> None:
            mine = (steps.c.pipeline == "p", steps.c.step == void)
            connection.execute(sa.update(steps).where(*mine).values(state="void"))
            if successor is not None:
                self._insert(connection, successor)

        self.transactions.run(work, **({} if successor is None else {"next_step": successor.step + 1}))

    patch.setattr(PipelineStore, "replan", replan)
    _trusting(patch)


def _trusting(patch: Patch) -> None:
    """The engine has a second net under the transaction that cuts: a planned step that does not begin at its source's
    position is void at the next start. A mutant must be without both."""
    patch.setattr(recover, "_is_current", lambda loop, plan: True)


def failvoid(patch: Patch) -> None:
    """*When n fails, all later steps are void, in the transaction* that says so: here they stay planned."""
    patch.setattr(PipelineStore, "voiding", lambda self, step: lambda connection: None)


def resolve(patch: Patch) -> None:
    """*n+1 is resolved only after n is done*: here as soon as it is staged, with the window of that moment."""
    windows: dict[int, str] = {}
    stage, resolved = StepLoop.stage, StepLoop._resolved

    def staged(self: StepLoop, plan: Plan) -> Staged:
        windows[plan.step] = self.context.state.window
        return stage(self, plan)

    def early(self: StepLoop, plan: Plan, staged: Staged) -> Any:
        state = self.context.state
        state.window = windows.get(plan.step, state.window)
        return resolved(self, plan, staged)

    patch.setattr(StepLoop, "stage", staged)
    patch.setattr(StepLoop, "_resolved", early)
