"""Line 5 of the protocol: a staged step becomes a decision that never changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.dead_letters.index import index_letters
from conduit_dagster.engine.delivery_progress import as_delivery
from conduit_dagster.engine.offset_updates import after_step, merged
from conduit_dagster.engine.resolve import Resolution
from conduit_dagster.engine.stager import Staged, Stager, as_rows
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.steps import Decision, LetterPart, Plan, StagedDelivery


class Preparer:
    """Preparer of one pipeline's steps."""

    def __init__(self, context: StepContext, stager: Stager) -> None:
        self._context, self._pipeline, self._stager = context, context.pipeline, stager

    def prepare(self, plan: Plan, staged: Staged, resolution: Resolution) -> Decision:
        """Make staging durable, then record the decision; nothing is published before this returns."""
        context = self._context
        decision = self._decision(plan, staged, resolution)
        self._stager.sync(staged.staging, [delivery.consumer for delivery in decision.deliveries if delivery.parts])
        moves = after_step(plan, decision) if decision.once else None
        letters = self._letters(staged)
        context.memories.sync(plan.memory, decision.memory)
        reached("before-prepare", context.name)
        context.store.prepare(plan, decision, letters, moves)
        reached("after-prepare", context.name)
        context.state.prepared(decision)
        if letters:
            index_letters(context.store, context.archive)
        return decision

    def _letters(self, staged: Staged) -> list[LetterPart]:
        parts = [ledger.letters for ledger in staged.ledgers if ledger.letters]
        if parts:
            # the index must not name a file that a crash could remove
            self._context.archive.sync()
        return parts

    def _decision(self, plan: Plan, staged: Staged, resolution: Resolution) -> Decision:
        return Decision(
            as_rows(staged.tasks),
            resolution.counts,
            [self._delivery(plan, staged, name) for name in self._context.consumers if _gets(plan, name)],
            resolution.window,
            _added(ledger.filtered for ledger in staged.ledgers),
            _added(ledger.nacked for ledger in staged.ledgers),
            merged(ledger.namespaces for ledger in staged.ledgers),
            self._pipeline.program.strategy == "at-most-once",
            {**plan.memory, **{node: one for ledger in staged.ledgers for node, one in ledger.memory.items()}},
        )

    def _delivery(self, plan: Plan, staged: Staged, consumer: str) -> StagedDelivery:
        parts = staged.parts(consumer)
        kind = "dlq" if consumer == DEAD_LETTERS else "data"
        target = self._target(consumer) if parts else {}
        name, folder, origins = plan.hashes[consumer], staged.staging[consumer], staged.origins(consumer)
        made = StagedDelivery(consumer, kind, name, folder, parts, target, origins=origins)
        if not parts or self._pipeline.program.strategy != "at-most-once":
            return made
        expected = self._context.consumers[consumer].expected(as_delivery(made, plan.step))
        return msgspec.structs.replace(made, expected=expected)

    def _target(self, consumer: str) -> dict[str, Any]:
        destination = self._context.consumers[consumer]
        return blamed(self._context.node(consumer), destination.target, self._context.state.targets.get(consumer))


def _gets(plan: Plan, consumer: str) -> bool:
    return plan.is_for(consumer) or consumer == DEAD_LETTERS


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return total
