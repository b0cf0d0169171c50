"""Lines 6 and 7 of the protocol: dead letters first, then the destinations side by side; then done, then the acks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from conduit_dagster.connectors.base import Delivery, Destination
from conduit_dagster.engine.compiled import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.recovery.errors import ConduitError, TransientError, from_os_error
from conduit_dagster.state.steps import Decision, Plan, StagedDelivery
from conduit_dagster.state.store import PipelineStore

T = TypeVar("T")
P = ParamSpec("P")


def as_delivery(staged: StagedDelivery, step: int) -> Delivery:
    """A stored delivery as destinations see it."""
    return Delivery(staged.hash, step, staged.consumer, staged.staging, tuple(staged.parts), staged.target)


def identity(destination: Destination) -> dict[str, str | None]:
    """What a destination is, as far as a prepared step is concerned."""
    return {"plugin": destination.name, "target": destination.owned}


class Publisher:
    """Publishes prepared steps."""

    def __init__(self, pipeline: CompiledPipeline, store: PipelineStore) -> None:
        self._pipeline = pipeline
        self._store = store

    def publish(self, plan: Plan, deliveries: Sequence[StagedDelivery]) -> None:
        """Publishes each delivery under its hash. The first error is raised when all have ended."""
        open_ones = [as_delivery(delivery, plan.step) for delivery in deliveries if delivery.parts]
        letters = [delivery for delivery in open_ones if delivery.consumer == DEAD_LETTERS]
        others = [delivery for delivery in open_ones if delivery.consumer != DEAD_LETTERS]
        for delivery in letters:
            self._one(delivery)
        if len(others) == 1:
            self._one(others[0])
        elif others:
            self._side_by_side(others)

    def _side_by_side(self, deliveries: list[Delivery]) -> None:
        with ThreadPoolExecutor(len(deliveries), "publish") as pool:
            running: list[Future[None]] = [pool.submit(self._one, delivery) for delivery in deliveries]
        for future in running:
            future.result()

    def _one(self, delivery: Delivery) -> None:
        destination = self._pipeline.consumers()[delivery.consumer]
        reached("before-publish")
        target = blamed(self._node(delivery.consumer), destination.publish, delivery)
        reached("after-publish")
        self._store.delivered(delivery.step, delivery.consumer, delivery.records, target)
        reached("after-delivered")

    def _node(self, consumer: str) -> str:
        return f"{self._pipeline.program.pipeline}:{consumer}"

    def settle(self, plan: Plan, held: Sequence[StagedDelivery]) -> None:
        """Marks what a destination turned out to hold already; it is not sent again (CASES B14)."""
        for staged in held:
            delivery = as_delivery(staged, plan.step)
            destination = self._pipeline.consumers()[staged.consumer]
            target = blamed(self._node(staged.consumer), destination.settled, delivery)
            self._store.delivered(plan.step, staged.consumer, delivery.records, target)

    def finish(self, plan: Plan, decision: Decision) -> None:
        """Done, and only then the acks: a source is never acked ahead of its stored position."""
        reached("before-done")
        self._store.done(plan, decision)
        reached("after-done")
        for span in plan.ranges:
            self._pipeline.inlet(span.source).source.ack(span.end, span.generation)
        reached("after-ack")


def blamed(node: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``call`` returns; any error of it names the node."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        raise blame(error, node) from error


def blame(error: Exception, node: str) -> ConduitError:
    """Any error of a connector as one of ours that names its node; what nobody classified is transient."""
    if isinstance(error, ConduitError):
        known = error
    elif isinstance(error, OSError):
        known = from_os_error(error, f"{node} failed")
    else:
        known = TransientError(f"{type(error).__name__}: {error}", code="connector.failed")
    known.node = known.node or node
    return known
