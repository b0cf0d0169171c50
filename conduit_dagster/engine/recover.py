"""Start-up recovery (DELIVERY.md, Start). May be killed at any line and repeated."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.ack_file import newest
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.dead_letters.replaying import settle_letters
from conduit_dagster.engine.delivery_progress import Shipment, as_delivery, progress_of
from conduit_dagster.engine.error_context import blamed
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.publish import identity
from conduit_dagster.engine.reads_same import changed_source, reads_same
from conduit_dagster.engine.registering import register, retire
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Destination
from conduit_dagster.state.pipeline_state import OpenStep
from conduit_dagster.state.steps import Decision, DeliveryProgress, Plan, StagedDelivery
from conduit_dagster.state.store import PipelineStore

Acked = frozenset[tuple[str, int]]
"""Sources, each with the generation under which it was acked."""


def start_up(
    pipeline: CompiledPipeline, store: PipelineStore, make_loop: Callable[[], StepLoop], plans: bool = True
) -> StepLoop:
    """A loop that has nothing behind it: open steps have ended, and then connectors are what the file says.

    In this order: consumers that are gone are retired; open steps end with the consumers, sources and generations that
    they were planned with; only then connectors are added and changed, for what a newcomer catches up on follows from
    where the sources stand then (DELIVERY.md, When the pipeline changes).
    """
    retire(pipeline, store)
    acked = recover(make_loop(), plans)
    register(pipeline, store)
    loop = make_loop()
    # one that is new, or another one: it hears of its generation before an old owner can ack it under its last one
    acknowledge(loop, acked)
    settle_letters(loop)
    return loop


def acknowledge(loop: StepLoop, acked: Acked = frozenset()) -> Acked:
    """Acks every source at its stored position, but for what was ``acked`` already; gives all that are now."""
    done = set(acked)
    for inlet in loop.pipeline.inlets:
        # to a source that is another one by now the position means nothing
        if reads_same(loop.pipeline, inlet, loop.state):
            state = loop.state.sources[inlet.id]
            if (inlet.id, state.generation) not in done:
                loop.publisher.acks.ack(inlet, state.position, state.generation)
                done.add((inlet.id, state.generation))
    return frozenset(done)


def recover(loop: StepLoop, plans: bool = True) -> Acked:
    """Acks every source at its stored position, then finishes what the run before left open, in chain order.

    Without ``plans`` a step that is only planned is dropped: the next run plans it anew.
    """
    # an ack may have been lost in the crash
    acked = acknowledge(loop)
    reached("after-reack", loop.pipeline.program.pipeline)
    _finish_open(loop, plans)
    return acked


def _finish_open(loop: StepLoop, plans: bool) -> None:
    open_steps = loop.state.open_steps
    memories = [loop.state.memory, *(step.plan.memory for step in open_steps)]
    loop.stager.memories.clean(memories, loop.state.decided)
    loop.stager.clean([d for step in open_steps if step.decision for d in _staged(step, step.decision)])
    for step in open_steps:
        if step.decision is not None:
            # a prepared step is never planned anew: a frozen owner may still publish it
            _finish(loop, step, step.decision)
        elif plans and _is_current(loop, step.plan):
            loop.execute(step.plan)
        else:
            loop.store.void(step.plan.step)
            break


def _staged(step: OpenStep, decision: Decision) -> list[StagedDelivery]:
    return [*decision.deliveries, *(letter.delivery for letter in step.letters)]


def _is_current(loop: StepLoop, plan: Plan) -> bool:
    """Whether a planned step still fits the file: the same consumers, and sources that stand where it begins."""
    if plan.reads != loop.pipeline.reads or plan.replay:
        return False  # letters that no prepared step has are open again
    if plan.hashes.keys() != {"", *loop.pipeline.consumers()} or changed_source(loop.pipeline, plan, loop.state):
        return False
    for name, destination in loop.pipeline.consumers().items():
        # it would be prepared for another target than the plan says
        if plan.targets.get(name, identity(destination)) != identity(destination):
            return False
    for span in plan.ranges:
        state = loop.state.sources[span.source]
        if loop.pipeline.inlet(span.source).source.gives_up(span.start, span.end):
            return False
        if (state.generation, state.position) != (span.generation, span.start):
            return False
    # a processor that remembers may have come into the file, or come back, since
    memory = loop.memory()
    if any(plan.memory.get(node) != memory[node] for node in memory):
        return False
    return loop.can_stage(plan)


def _finish(loop: StepLoop, step: OpenStep, decision: Decision) -> None:
    plan, started = step.plan, time.monotonic()
    if step.letters:
        _require_same(plan, DEAD_LETTERS, loop.pipeline.dead_letters)
    shipments = prepared(loop, step, decision)
    _finish_letters(loop, step, decision)
    loop.publisher.publish(shipments)
    loop.complete(plan, decision, [], started, step.void)
    loop.stager.discard({delivery.consumer: delivery.staging for delivery in decision.deliveries})


def prepared(loop: StepLoop, step: OpenStep, decision: Decision) -> list[Shipment]:
    """What is still to be published of a prepared step; what its destinations hold already is marked."""
    plan, consumers = step.plan, loop.pipeline.consumers()
    todo = [d for d in decision.deliveries if d.parts and d.consumer not in step.delivered and d.consumer in consumers]
    for delivery in todo:
        _require_same(plan, delivery.consumer, consumers[delivery.consumer])
    held = [d for d in todo if _holds(loop, plan, d)]
    missing = _retargeted(loop, plan, decision, [d for d in todo if d not in held])
    for staged in held:
        loop.publisher.settle(Shipment(plan, decision, staged))
    if any(not _is_staged(delivery) for delivery in missing):
        missing = loop.restaged.again(plan, decision, missing)
    return [shipped(loop.pipeline, step, decision, staged) for staged in missing]


def shipped(pipeline: CompiledPipeline, step: OpenStep, decision: Decision, staged: StagedDelivery) -> Shipment:
    """As far as the store knows, and as a direct job made durable before it could say so."""
    known = step.progress.get(staged.consumer, DeliveryProgress())
    if pipeline.consumers()[staged.consumer].placement == "direct":
        for acked in newest(staged.staging):
            known = progress_of(acked, known)
    return Shipment(step.plan, decision, staged, known, is_recovered=True)


def _finish_letters(loop: StepLoop, step: OpenStep, decision: Decision) -> None:
    """Dead letters that were recorded and whose publishing is not: before any destination goes on."""
    for known in step.letters:
        if loop.publisher.settle_letter(known.delivery, step.plan):
            continue
        letter = loop.publisher.retargeted_letter(known, step.plan)
        staged = letter.delivery
        if not _is_staged(staged):
            staged = loop.publisher.refusals.stage_letter_again(step.plan, decision, letter)
        loop.publisher.publish_letter(staged, step.plan)


def _require_same(plan: Plan, consumer: str, destination: Destination) -> None:
    """A changed target under a prepared step is refused with both named (DELIVERY.md, Destinations)."""
    now = identity(destination)
    was = plan.targets.get(consumer, now)
    if was != now:
        raise FatalError(
            f"step {plan.step} was prepared for {_named(was)}, but {consumer} is {_named(now)} now",
            code="delivery.target_changed",
            node=consumer,
            fix=f"set it back to {_named(was)}, let the pipeline finish the step, then change it",
        )


def _named(target: dict[str, str | None]) -> str:
    return " ".join(filter(None, (target["plugin"], target["target"])))


def _holds(loop: StepLoop, plan: Plan, staged: StagedDelivery) -> bool:
    destination = loop.pipeline.consumers()[staged.consumer]
    return blamed(loop.node(staged.consumer), destination.holds, as_delivery(staged, plan.step))


def _retargeted(loop: StepLoop, plan: Plan, decision: Decision, missing: list[StagedDelivery]) -> list[StagedDelivery]:
    """Deliveries whose target was lost, and whose settings allow another one, under that; stored before any write."""
    changed: dict[str, StagedDelivery] = {}
    for staged in missing:
        destination = loop.pipeline.consumers()[staged.consumer]
        delivery = as_delivery(staged, plan.step)
        target = blamed(loop.node(staged.consumer), destination.retarget, delivery)
        if target is not None:
            changed[staged.consumer] = msgspec.structs.replace(staged, target=target)
    if not changed:
        return missing
    every = [changed.get(delivery.consumer, delivery) for delivery in decision.deliveries]
    loop.store.retarget(plan, msgspec.structs.replace(decision, deliveries=every))
    return [changed.get(staged.consumer, staged) for staged in missing]


def _is_staged(delivery: StagedDelivery) -> bool:
    files = [*delivery.parts, *delivery.origins]
    return all(storage.size(storage.join(delivery.staging, part.name)) == part.bytes for part in files)
