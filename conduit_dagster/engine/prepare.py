"""Line 5 of the protocol: a staged step becomes a decision that never changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.dead_letters.index import index_letters
from conduit_dagster.engine.delivery_progress import as_delivery
from conduit_dagster.engine.offset_updates import after_step
from conduit_dagster.engine.resolve import Resolution
from conduit_dagster.engine.stager import Staged, Stager, as_rows
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.steps import Decision, LastInNamespace, Namespaces, Plan, StagedDelivery


def prepare(context: StepContext, stager: Stager, plan: Plan, staged: Staged, resolution: Resolution) -> Decision:
    """Make staging durable, then record the decision; nothing is published before this returns."""
    decision = _decision(context, plan, staged, resolution)
    stager.sync(staged.staging, [delivery.consumer for delivery in decision.deliveries if delivery.parts])
    offsets = after_step(plan, decision) if decision.once else None
    letters = [ledger.letters for ledger in staged.ledgers if ledger.letters]
    if letters:
        # the index must not name a file that a crash could remove
        context.archive.sync()
    context.processor_states.sync(plan.memory, decision.memory)
    reached("before-prepare", context.name)
    context.store.prepare(plan, decision, letters, offsets)
    reached("after-prepare", context.name)
    context.state.prepared(decision)
    if letters:
        index_letters(context.store, context.archive)
    return decision


def _decision(context: StepContext, plan: Plan, staged: Staged, resolution: Resolution) -> Decision:
    filtered, nacked = Counter[str](), Counter[str]()
    for ledger in staged.ledgers:
        filtered.update(ledger.filtered)
        nacked.update(ledger.nacked)
    consumers = [name for name in context.consumers if plan.is_for(name) or name == DEAD_LETTERS]
    return Decision(
        as_rows(staged.tasks),
        resolution.counts,
        [_delivery(context, plan, staged, name) for name in consumers],
        resolution.window,
        dict(filtered),
        dict(nacked),
        _merged(ledger.namespaces for ledger in staged.ledgers),
        context.pipeline.program.strategy == "at-most-once",
        {**plan.memory, **{node: one for ledger in staged.ledgers for node, one in ledger.memory.items()}},
    )


def _merged(parts: Iterable[Mapping[str, Mapping[str, LastInNamespace]]]) -> Namespaces:
    """Merge the namespaces of several tasks: the last record of each namespace."""
    total: Namespaces = {}
    for part in parts:
        for source, namespaces in part.items():
            known = total.setdefault(source, {})
            for namespace, seen in namespaces.items():
                if namespace not in known or known[namespace].ordinal < seen.ordinal:
                    known[namespace] = seen
    return total


def _delivery(context: StepContext, plan: Plan, staged: Staged, consumer: str) -> StagedDelivery:
    parts, destination = staged.parts(consumer), context.consumers[consumer]
    kind = "dlq" if consumer == DEAD_LETTERS else "data"
    before = context.state.targets.get(consumer)
    target = blamed(context.node(consumer), destination.target, before) if parts else {}
    name, folder, origins = plan.hashes[consumer], staged.staging[consumer], staged.origins(consumer)
    made = StagedDelivery(consumer, kind, name, folder, parts, target, origins=origins)
    if not parts or context.pipeline.program.strategy != "at-most-once":
        return made
    return msgspec.structs.replace(made, expected=destination.expected(as_delivery(made, plan.step)))
