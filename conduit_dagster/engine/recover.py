"""Start-up recovery. May be killed at any line and repeated (DELIVERY.md, Start)."""

from __future__ import annotations

import time

import msgspec

from conduit_dagster.engine.acks import newest
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.dead_letters.replay_route import settle_letters
from conduit_dagster.engine.delivery_progress import Shipment, as_delivery, progress_of
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.plan import planned_target
from conduit_dagster.engine.reads_same import changed_source
from conduit_dagster.engine.registering import register, retire
from conduit_dagster.engine.restage import is_staged
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Destination
from conduit_dagster.state.pipeline_state import OpenStep
from conduit_dagster.state.steps import Decision, DeliveryProgress, Plan, StagedDelivery

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
    retire(context.pipeline, context.store)
    context.reload()
    acked = recover(loop, plans)
    register(context.pipeline, context.store)
    context.reload()
    loop.planner.begin()
    # a new or changed source must learn its generation before an old owner can ack it under the previous one
    acknowledge(context, acked)
    settle_letters(context)


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
    loop.stager.clean([d for step in open_steps if step.decision for d in _staged(step, step.decision)])
    for step in open_steps:
        if step.decision is not None:
            # a prepared step is never replanned: a frozen owner may still publish it
            _finish(loop, step, step.decision)
        elif plans and _is_current(loop, step.plan):
            loop.execute(step.plan)
        else:
            context.store.void(step.plan.step)
            break


def _staged(step: OpenStep, decision: Decision) -> list[StagedDelivery]:
    return [*decision.deliveries, *(letter.delivery for letter in step.letters)]


def _is_current(loop: StepLoop, plan: Plan) -> bool:
    """Return whether a planned step still fits the file: the same consumers, and sources at the step's start."""
    pipeline, state = loop.context.pipeline, loop.context.state
    if plan.reads != pipeline.reads or plan.replay:
        return False  # letters that are in no prepared step are open again
    if plan.hashes.keys() != {"", *pipeline.consumers()} or changed_source(pipeline, plan, state):
        return False
    for name, destination in pipeline.consumers().items():
        # it would be prepared for a target other than the planned one
        if plan.targets.get(name, planned_target(destination)) != planned_target(destination):
            return False
    for span in plan.ranges:
        known = state.sources[span.source]
        if pipeline.source_node(span.source).source.gives_up(span.start, span.end):
            return False
        if (known.generation, known.position) != (span.generation, span.start):
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
        _require_same(plan, DEAD_LETTERS, loop.context.pipeline.dead_letters.destination, letter.queue)
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
        _require_same(plan, delivery.consumer, consumers[delivery.consumer])
    held = [d for d in todo if _holds(context, plan, d)]
    missing = _retargeted(context, plan, decision, [d for d in todo if d not in held])
    for staged in held:
        loop.publisher.settle(Shipment(plan, decision, staged))
    if any(not is_staged(delivery) for delivery in missing):
        missing = loop.restaged.again(plan, decision, missing)
    return [shipped(context.pipeline, step, decision, staged) for staged in missing]


def shipped(pipeline: CompiledPipeline, step: OpenStep, decision: Decision, staged: StagedDelivery) -> Shipment:
    """Return a delivery with its progress: as stored, or later progress from the ack file of a direct job."""
    known = step.progress.get(staged.consumer, DeliveryProgress())
    if pipeline.consumers()[staged.consumer].placement == "direct":
        for acked in newest(staged.staging):
            known = progress_of(acked, known)
    return Shipment(step.plan, decision, staged, known, is_recovered=True)


def _require_same(
    plan: Plan, consumer: str, destination: Destination, prepared_for: dict[str, str | None] | None = None
) -> None:
    """Raise ``FatalError``, naming both targets, if a prepared step's target has changed.

    ``prepared_for``: the target, if it is not the one of the plan. Source: DELIVERY.md, Destinations.
    """
    now = planned_target(destination)
    was = prepared_for or plan.targets.get(consumer, now)
    if was != now:
        raise FatalError(
            f"step {plan.step} was prepared for {_named(was)}, but {consumer} is {_named(now)} now",
            code="delivery.target_changed",
            node=consumer,
            fix=f"set it back to {_named(was)}, let the pipeline finish the step, then change it",
        )


def _named(target: dict[str, str | None]) -> str:
    return " ".join(filter(None, (target["plugin"], target["target"])))


def _holds(context: StepContext, plan: Plan, staged: StagedDelivery) -> bool:
    destination = context.consumers[staged.consumer]
    return blamed(context.node(staged.consumer), destination.holds, as_delivery(staged, plan.step))


def _retargeted(
    context: StepContext, plan: Plan, decision: Decision, missing: list[StagedDelivery]
) -> list[StagedDelivery]:
    """Return the deliveries, each with a new target if its own is lost and its settings allow it; stored first."""
    changed: dict[str, StagedDelivery] = {}
    for staged in missing:
        destination = context.consumers[staged.consumer]
        delivery = as_delivery(staged, plan.step)
        target = blamed(context.node(staged.consumer), destination.retarget, delivery)
        if target is not None:
            changed[staged.consumer] = msgspec.structs.replace(staged, target=target)
    if not changed:
        return missing
    every = [changed.get(delivery.consumer, delivery) for delivery in decision.deliveries]
    context.store.retarget(plan, msgspec.structs.replace(decision, deliveries=every))
    return [changed.get(staged.consumer, staged) for staged in missing]
