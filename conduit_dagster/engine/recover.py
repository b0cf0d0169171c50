"""Start-up recovery, which may be killed at any line and repeated (DELIVERY.md, Start); where sources resume."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import structlog

from conduit_dagster.commit_log.entries import Batch, decode_entries
from conduit_dagster.commit_log.segment_files import read_current
from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.commit_log.splits import LogManifest
from conduit_dagster.engine.acks import newest
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.delivery_progress import Shipment, as_delivery, progress_of
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.offset_updates import joined_members
from conduit_dagster.engine.open_work import settle_letters
from conduit_dagster.engine.plan import is_target, next_offset, planned_target
from conduit_dagster.engine.registering import changed_source, register, retire
from conduit_dagster.engine.restage import is_staged
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.record import Mode, Record
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Position, ResumeState, Source, Target
from conduit_dagster.state.overview import collection_rows
from conduit_dagster.state.pipeline_state import OpenStep
from conduit_dagster.state.steps import Decision, DeliveryProgress, Plan, StagedDelivery

log = structlog.get_logger("conduit.engine")

AckedSources = frozenset[tuple[str, int]]
"""Sources that were acked, each with the generation of the ack."""


def start_up(loop: StepLoop, plans: bool = True) -> None:
    """Bring a pipeline to where the loop can plan: no step is open, and connectors are registered as in the file.

    In this order: removed consumers are retired; open steps end with the consumers, sources and generations that they
    were planned with; only then are connectors added and changed, because a newcomer's catch-up depends on the sources'
    positions at that time (docs/delivery.md, What you may change, and when). Without ``plans`` a step that is only
    planned is dropped (DELIVERY.md, When the pipeline changes).
    """
    context = loop.context
    _tell_cut_off(context)
    retire(context.pipeline, context.store)
    context.reload()
    acked = recover(loop, plans)
    register(context.pipeline, context.store)
    context.reload()
    loop.planner.begin()
    # a new or changed source must learn its generation before an old owner can ack it under the previous one
    acknowledge(context, acked)
    settle_letters(context)


def _tell_cut_off(context: StepContext) -> None:
    """Warn of records that may be missing since the last run was killed while it delivered them (at-most-once)."""
    for one in context.store.deliveries.end_cut_off():
        told = {"step": one.step, "destination": one.consumer, "at_most": one.records}
        log.warning("the last run was cut off while it delivered (at-most-once): records may be missing", **told)


def acknowledge(context: StepContext, acked: AckedSources = frozenset()) -> AckedSources:
    """Ack every source at its stored position, except for those ``acked`` already; return all that are acked now."""
    done = set(acked)
    for source_node in context.acked_sources.values():
        state = context.state.sources[source_node.id]
        if (source_node.id, state.generation) not in done:
            context.acks.ack(source_node, state.position, state.generation)
            done.add((source_node.id, state.generation))
    return frozenset(done)


def recover(loop: StepLoop, plans: bool = True) -> AckedSources:
    """Ack every source at its stored position, then finish the steps that the last run left open, in order.

    Without ``plans`` a step that is only planned is dropped: the next run plans it again.
    """
    loop.planner.begin()
    # an ack may have been lost in the crash
    acked = acknowledge(loop.context)
    reached("after-reack", loop.context.name)
    _finish_open(loop, plans)
    return acked


def _finish_open(loop: StepLoop, plans: bool) -> None:
    context = loop.context
    open_steps = context.state.open_steps
    states = [context.state.memory, *(step.plan.memory for step in open_steps)]
    context.processor_states.clean(states, context.state.decided)
    staged = [one for step in open_steps if step.decision for one in step.decision.deliveries]
    loop.stager.clean([*staged, *(letter.delivery for step in open_steps for letter in step.letters)])
    for step in open_steps:
        if step.decision is not None:
            # a prepared step is never replanned: a frozen owner may still publish it
            _finish(loop, step, step.decision)
        elif plans and _is_current(loop, step.plan):
            loop.execute(step.plan)
        else:
            context.store.void(step.plan.step)
            break


def _is_current(loop: StepLoop, plan: Plan) -> bool:
    """Return whether a planned step still fits the file: the same consumers, and sources at the step's start."""
    pipeline, state = loop.context.pipeline, loop.context.state
    if plan.reads != pipeline.reads or plan.replay:
        return False  # letters that are in no prepared step are open again
    if plan.hashes.keys() != {"", *pipeline.consumers} or changed_source(pipeline, plan, state):
        return False
    for name, destination in pipeline.consumers.items():
        # it would be prepared for a target other than the planned one
        if not is_target(plan.targets.get(name, {}), destination):
            return False
    for span in plan.ranges:
        known, node = state.sources[span.source], pipeline.source_node(span.source)
        source = node.source
        if blamed(node.node, source.gives_up, span.start, span.end):
            return False
        # the step before it may have other records than when this one was planned behind it
        if (known.generation, known.position, next_offset(source, known)) != (span.generation, span.start, span.offset):
            return False
    # a stateful processor may have been added to the file since, or restored
    memory = loop.planner.memory()
    if any(plan.memory.get(node) != memory[node] for node in memory):
        return False
    return loop.can_stage(plan)


def _finish(loop: StepLoop, step: OpenStep, decision: Decision) -> None:
    plan, started = step.plan, time.monotonic()
    loop.refusals.recall(plan, decision)
    for letter in step.letters:
        _require_same(loop.context, plan, DEAD_LETTERS, letter.queue)
    shipments = prepared(loop, step, decision)
    # recorded dead letters that are not published yet come before any destination continues
    for letter in step.letters:
        loop.letters.finish(plan, decision, letter)
    loop.publisher.publish(shipments)
    delivered = {**step.sent, **{shipment.consumer: shipment.delivered for shipment in shipments}}
    loop.complete(plan, decision, [], started, delivered, step.void)
    loop.stager.discard({delivery.consumer: delivery.staging for delivery in decision.deliveries})


def prepared(loop: StepLoop, step: OpenStep, decision: Decision) -> list[Shipment]:
    """Return the deliveries of a prepared step that are still to be published; those already published are marked."""
    context, plan, consumers = loop.context, step.plan, loop.context.consumers
    todo = [d for d in decision.deliveries if d.parts and d.consumer not in step.delivered and d.consumer in consumers]
    for delivery in todo:
        if not _was_refused(context, plan, delivery):
            _require_same(context, plan, delivery.consumer)
    held = [d for d in todo if _holds(context, plan, d)]
    for staged in held:
        loop.publisher.settle(Shipment(plan, decision, staged))
    missing = [d for d in todo if d not in held]
    if lost := [staged for staged in missing if not is_staged(staged)]:
        again = {staged.consumer: staged for staged in loop.restaged.again(plan, decision, lost)}
        missing = [again.get(staged.consumer, staged) for staged in missing]
    # a destination compares what it has with the staged bytes
    missing = _retargeted(context, plan, decision, missing)
    return [shipped(context.pipeline, step, decision, staged) for staged in missing]


def shipped(pipeline: CompiledPipeline, step: OpenStep, decision: Decision, staged: StagedDelivery) -> Shipment:
    """Return a delivery with its progress: as stored, or later progress from the ack file of a direct job."""
    known = step.progress.get(staged.consumer, DeliveryProgress())
    if pipeline.consumers[staged.consumer].placement == "direct":
        for acked in newest(staged.staging):
            known = progress_of(acked, known)
    return Shipment(step.plan, decision, staged, known, is_recovered=True)


def _require_same(
    context: StepContext, plan: Plan, consumer: str, prepared_for: dict[str, str | None] | None = None
) -> None:
    """Raise ``FatalError``, naming both targets, if a prepared step's target has changed.

    ``prepared_for``: the target, if it is not the one of the plan. Source: DELIVERY.md, Destinations.
    """
    was, destination = prepared_for or plan.targets.get(consumer, {}), context.consumers[consumer]
    if not is_target(was, destination):
        now = _named(planned_target(destination))
        raise FatalError(
            f"step {plan.step} was prepared for {_named(was)}, but {consumer} is {now} now",
            code="delivery.target_changed",
            node=context.node(consumer),
            fix=f"set it back to {_named(was)}, let the pipeline finish the step, then change it",
        )


def _was_refused(context: StepContext, plan: Plan, staged: StagedDelivery) -> bool:
    """Return whether only the place of its hashes has changed, and the earlier one can't have this delivery."""
    was, destination = plan.targets.get(staged.consumer, {}), context.consumers[staged.consumer]
    hashes = was.get("hashes", destination.hashes_at)
    if hashes == destination.hashes_at or not is_target({**was, "hashes": destination.hashes_at}, destination):
        return False
    return blamed(context.node(staged.consumer), destination.never_takes, hashes, as_delivery(staged, plan.step))


def _named(target: dict[str, str | None]) -> str:
    name = " ".join(filter(None, (target["plugin"], target["target"])))
    return " with ".join(filter(None, (name, target.get("hashes"))))


def _holds(context: StepContext, plan: Plan, staged: StagedDelivery) -> bool:
    destination = context.consumers[staged.consumer]
    return blamed(context.node(staged.consumer), destination.holds, as_delivery(staged, plan.step))


def _retargeted(
    context: StepContext, plan: Plan, decision: Decision, missing: list[StagedDelivery]
) -> list[StagedDelivery]:
    """Return the deliveries, each with a new target if its own is lost and its settings allow it; stored first."""
    targets: dict[str, Target] = {}
    for staged in missing:
        destination = context.consumers[staged.consumer]
        delivery = as_delivery(staged, plan.step)
        target = blamed(context.node(staged.consumer), destination.retarget, delivery)
        if target is not None:
            targets[staged.consumer] = target
    if not targets:
        return missing

    def moved(staged: StagedDelivery) -> StagedDelivery:
        return msgspec.structs.replace(staged, target=targets.get(staged.consumer, staged.target))

    every = [moved(staged) for staged in decision.deliveries]
    context.store.retarget(plan, msgspec.structs.replace(decision, deliveries=every))
    return [moved(staged) for staged in missing]


def resume_sources(context: StepContext) -> None:
    """Pass the resume state to each source that uses it. Call it when all open steps are done, before reading."""
    for node in context.pipeline.sources:
        if type(node.source).resume is not Source.resume:
            blamed(context.node(node.id), node.source.resume, _Resuming(context, node).state())


class _Resuming:
    def __init__(self, context: StepContext, node: SourceNode) -> None:
        self._context, self._id, self._source = context, node.id, node.source
        folder = LogFolder(context.settings.log, context.name, node.id)
        self._log = LogManifest(context.store.transactions.read, folder)

    def state(self) -> ResumeState:
        modes = self._handled_modes()
        if self._context.pipeline.program.log != "records":
            position = self._context.state.sources[self._id].position
            return ResumeState(position, None, modes | self._own_modes(position))
        logged = self._log.state()
        try:
            modes |= self._logged_modes()
            last = self._last(logged.next_offset)
        except FatalError as error:
            # the step that needs the entry reports the error; a source must be able to resume without it
            log.warning("a source's last record can't be read from the log", source=self._id, cause=error.message)
            last = None
        return ResumeState(logged.position, last, modes | self._own_modes(logged.position))

    def _own_modes(self, position: Position) -> dict[str, Mode]:
        return dict(blamed(self._context.node(self._id), self._source.collection_modes, position))

    def _handled_modes(self) -> dict[str, Mode]:
        rows = collection_rows(self._context.store.engine, self._context.name)
        return {row["namespace"]: row["mode"] for row in rows if row["source"] == self._id}

    def _logged_modes(self) -> dict[str, Mode]:
        """Return the modes of collections whose records are logged and not yet in a step that is done."""
        found: dict[str, Mode] = {}
        for batch in self._batches(self._handled(), ["namespace", "mode"]):
            found |= dict(zip(batch.column("namespace").to_pylist(), batch.column("mode").to_pylist(), strict=True))
        return found

    def _handled(self) -> int:
        state = self._context.state
        plan = state.last_plan
        joined = {} if plan is None else joined_members(plan)
        name = next((join for join, members in joined.items() if self._id in members), None)
        if name is not None and name in state.sources:
            return int(state.sources[name].position[self._id])
        return int(state.sources[self._id].position)

    def _last(self, stop: int) -> Record | None:
        entries = (entry for batch in self._batches(max(0, stop - 1)) for entry in decode_entries(batch))
        return next((entry.record for entry in entries), None)

    def _batches(self, start: int, columns: list[str] | None = None) -> Iterator[Batch]:
        return read_current(self._log.folder, self._log.parts, start, None, columns)
