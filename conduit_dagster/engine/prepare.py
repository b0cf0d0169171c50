"""Line 5 of the protocol: a staged step becomes a decision that never changes, then its dead letters are indexed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, DestinationNode
from conduit_dagster.engine.dead_letters.archive import Archive, ArchivedLetter
from conduit_dagster.engine.delivery_progress import as_delivery
from conduit_dagster.engine.offset_updates import after_step
from conduit_dagster.engine.resolve import Resolution
from conduit_dagster.engine.stager import Staged, Stager, as_rows
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.letter_index import UnindexedPart
from conduit_dagster.state.steps import DeadLetter, Decision, LastInNamespace, Namespaces, Plan, Range, StagedDelivery
from conduit_dagster.state.store import PipelineStore


def prepare(context: StepContext, stager: Stager, plan: Plan, staged: Staged, resolution: Resolution) -> Decision:
    """Make staging durable, then record the decision; nothing is published before this returns."""
    decision = _decision(context, plan, staged, resolution)
    stager.sync(staged.staging, [delivery.consumer for delivery in decision.deliveries if delivery.parts])
    offsets = after_step(plan, decision) if decision.once else None
    letters = [ledger.letters for ledger in staged.ledgers if ledger.letters]
    if letters:
        # the index must not name a file that a crash could remove
        context.archive.sync()
    if decision.memory:
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
    every = (context.pipeline.dead_letters, *context.pipeline.outputs)
    consumers = [one for one in every if not plan.only or one.id in (plan.only, DEAD_LETTERS)]
    return Decision(
        as_rows(staged.tasks),
        resolution.counts,
        [_delivery(context, plan, staged, one) for one in consumers],
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


def _delivery(context: StepContext, plan: Plan, staged: Staged, consumer: DestinationNode) -> StagedDelivery:
    name, destination, (parts, origins) = consumer.id, consumer.destination, staged.share(consumer.id)
    kind = "dlq" if name == DEAD_LETTERS else "data"
    target = blamed(consumer.node, destination.target, context.state.targets.get(name)) if parts else {}
    made = StagedDelivery(name, kind, plan.hashes[name], staged.staging[name], parts, target, origins=origins)
    if not parts or context.pipeline.program.strategy != "at-most-once":
        return made
    return msgspec.structs.replace(made, expected=destination.expected(as_delivery(made, plan.step)))


def index_letters(store: PipelineStore, archive: Archive) -> None:
    """Add an index row for every dead letter of a prepared step, before anything of the step is published.

    The decision names the files; their rows follow in short transactions, so that a million rows don't block other
    pipelines. May be killed at any line and repeated: the next holder of the lease continues where it ended.
    """
    for part in store.letter_index.unindexed():
        line = 0
        for rows in _rows(archive, part):
            if line + len(rows) > part.indexed:
                # an earlier owner may have read the file in batches of another size
                begun = max(0, part.indexed - line)
                store.letter_index.add(part, line + begun, rows[begun:])
                reached("mid-index", store.pipeline)
            line += len(rows)


def _rows(archive: Archive, part: UnindexedPart) -> Iterator[list[DeadLetter]]:
    """Yield a file's index rows in record order, a few thousand at a time."""
    plan = part.plan
    spans = {span.source: span for span in plan.ranges}
    before = {source: frozenset(offsets) for source, offsets in plan.nacked.items()}
    queued = "" if plan.replay else plan.hashes.get(DEAD_LETTERS, "")
    line = 0
    for letters in archive.index(part.name):
        rows: list[DeadLetter] = []
        for place, one in enumerate(letters, line):
            span = spans[one.source]
            name = "" if span.offset + one.ordinal in before.get(one.source, ()) else queued
            rows.append(index_row(one, span, name, part.name, place))
        yield rows
        line += len(letters)


def index_row(letter: ArchivedLetter, span: Range, name: str, part: str, line: int) -> DeadLetter:
    """Return the index row of a letter in a step's range. ``name``: its delivery to the queue, or empty."""
    return DeadLetter(
        span.connector,
        span.generation,
        letter.position,
        span.offset + letter.ordinal,
        letter.node,
        letter.code,
        letter.message,
        letter.namespace,
        name,
        letter.missed,
        part,
        line,
        (letter.step, letter.number) if letter.step >= 0 else None,
    )
