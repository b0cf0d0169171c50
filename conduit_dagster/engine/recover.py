"""Start-up recovery (DELIVERY.md, Start). May be killed at any line and repeated."""

from __future__ import annotations

import time

import msgspec

from conduit_dagster.connectors.base import Destination
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.publish import as_delivery, blamed, identity
from conduit_dagster.engine.staging import from_rows
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import storage
from conduit_dagster.state.steps import Decision, Part, Plan, StagedDelivery
from conduit_dagster.state.store import OpenStep


def recover(loop: StepLoop) -> None:
    """Acks every source at its stored position, then finishes what the run before left open, in chain order."""
    for source, state in loop.state.sources.items():
        if any(inlet.id == source for inlet in loop.pipeline.inlets):
            # an ack may have been lost in the crash
            loop.pipeline.inlet(source).source.ack(state.position, state.generation)
    open_steps = loop.state.open_steps
    loop.stager.clean([d for step in open_steps if step.decision for d in step.decision.deliveries])
    for step in open_steps:
        if step.decision is not None:
            # a prepared step is never planned anew: a frozen owner may still publish it
            _finish(loop, step, step.decision)
        elif _is_current(loop, step.plan):
            loop.execute(step.plan)
        else:
            loop.store.void(step.plan.step)
    loop.state = loop.store.load()


def _is_current(loop: StepLoop, plan: Plan) -> bool:
    """Whether a planned step still fits: its sources are there, and stand where it begins."""
    present = {inlet.id for inlet in loop.pipeline.inlets}
    for span in plan.ranges:
        state = loop.state.sources.get(span.source)
        if span.source not in present or state is None:
            return False
        if loop.pipeline.inlet(span.source).source.gives_up(span.start, span.end):
            return False
        if (state.generation, state.position) != (span.generation, span.start):
            return False
    return True


def _finish(loop: StepLoop, step: OpenStep, decision: Decision) -> None:
    plan, started = step.plan, time.monotonic()
    consumers = loop.pipeline.consumers()
    todo = [d for d in decision.deliveries if d.parts and d.consumer not in step.delivered and d.consumer in consumers]
    for delivery in todo:
        _require_same(plan, delivery.consumer, consumers[delivery.consumer])
    held = [d for d in todo if _holds(loop, plan, d)]
    missing = _retargeted(loop, plan, decision, [d for d in todo if d not in held])
    loop.publisher.settle(plan, held)
    if any(not _is_staged(delivery) for delivery in missing):
        missing = _rebuild(loop, plan, decision, missing)
    loop.publisher.publish(plan, missing)
    loop.complete(plan, decision, [], started)
    loop.stager.discard({delivery.consumer: delivery.staging for delivery in [*decision.deliveries, *missing]})


def _require_same(plan: Plan, consumer: str, destination: Destination) -> None:
    """A changed target under a prepared step is refused with both named (DELIVERY.md, Destinations)."""
    was, now = plan.targets[consumer], identity(destination)
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
    return all(storage.size(storage.join(delivery.staging, part.name)) == part.bytes for part in delivery.parts)


def _rebuild(loop: StepLoop, plan: Plan, decision: Decision, missing: list[StagedDelivery]) -> list[StagedDelivery]:
    """Staging that is gone, made again from the same splits; the digests must be those that were prepared."""
    staged = loop.stager.stage(plan, from_rows(decision.splits))
    rebuilt: list[StagedDelivery] = []
    for old in missing:
        parts = staged.parts(old.consumer)
        if [_content(part) for part in parts] != [_content(part) for part in old.parts]:
            raise FatalError(
                f"step {plan.step} was prepared, its staging is gone, and staging it again gives other records for "
                f"{old.consumer}: a processor, a setting or the source has changed",
                code="delivery.rebuild_differs",
                place=old.staging,
                fix="put the pipeline file, the plugins and the source back as they were, run, then change them",
            )
        rebuilt.append(
            StagedDelivery(old.consumer, old.kind, old.hash, staged.staging[old.consumer], parts, old.target)
        )
    return rebuilt


def _content(part: Part) -> tuple[int, int, str]:
    return part.records, part.bytes, part.sha256
