"""Mutants: rules of publishing, of redelivery and of acks, removed one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from engine.mutants import counter_plugin

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.dead_letters import late_letters
from conduit_dagster.engine.delivery_progress import Shipment
from conduit_dagster.engine.publish import Publisher
from conduit_dagster.engine.redelivery import Redelivery
from conduit_dagster.engine.refusals import Refusals
from conduit_dagster.sdk import Delivery
from conduit_dagster.state.delivery_store import DeliveryStore
from conduit_dagster.state.lease import Lease
from conduit_dagster.state.tables import pipelines

Patch = pytest.MonkeyPatch


def claim(patch: Patch) -> None:
    """*Before the first child is sent, the parent's hash is claimed as split*: here it is not."""

    def unclaimed(self: Redelivery, delivery: Delivery, state: str) -> bool:
        return False

    patch.setattr(Redelivery, "_claim", unclaimed)


def claim_heeded(patch: Patch) -> None:
    """*Found delivered: the delivery is done, no child is sent*: here they are always sent."""
    claimed = Redelivery._claim

    def unheeded(self: Redelivery, delivery: Delivery, state: str) -> bool:
        claimed(self, delivery, state)
        return False

    patch.setattr(Redelivery, "_claim", unheeded)


def kidclaim(patch: Patch) -> None:
    """*Before a rejection is recorded as a nack, the child's hash is claimed as nacked*: here it is not."""

    def unclaimed(self: Refusals, shipment: Shipment, places: Sequence[int]) -> set[int]:
        return set()

    patch.setattr(Refusals, "_claim", unclaimed)


def kidheeded(patch: Patch) -> None:
    """*Found delivered: it is delivered*: here it is nacked nevertheless."""
    claimed = Refusals._claim

    def unheeded(self: Refusals, shipment: Shipment, places: Sequence[int]) -> set[int]:
        claimed(self, shipment, places)
        return set()

    patch.setattr(Refusals, "_claim", unheeded)


def dlqonce(patch: Patch) -> None:
    """*One source record makes at most one nack and one dead letter*: here each copy makes its own."""
    patch.setattr(DeliveryStore, "nacked_among", lambda *_: set())


def dlqkey(patch: Patch) -> None:
    """Dead letters found at publishing have *a number space apart*: here they share that of the step's own."""
    patch.setattr(late_letters, "LETTERS", 0)


def dlqlast(patch: Patch) -> None:
    """*Dead letters first (order)*: here last."""
    publish = Publisher.publish

    def last(self: Publisher, shipments: Sequence[Shipment]) -> None:
        publish(self, [one for one in shipments if one.consumer != DEAD_LETTERS])
        publish(self, [one for one in shipments if one.consumer == DEAD_LETTERS])

    patch.setattr(Publisher, "publish", last)


def amonoresend(patch: Patch) -> None:
    """At-most-once is *published once, never recovered and never resent*: here it is tried again after an error."""
    attempt = Publisher._attempt

    def twice(self: Publisher, shipment: Shipment) -> Any:
        return attempt(self, shipment) and attempt(self, shipment)

    patch.setattr(Publisher, "_attempt", twice)


def epoch(patch: Patch) -> None:
    """*Every transaction of the protocol checks the epoch*: here none does."""

    def anybodys(self: Lease, connection: sa.Connection, **values: Any) -> int | None:
        mine = sa.update(pipelines).where(pipelines.c.pipeline == self.pipeline)
        beat = mine.values(heartbeat=pipelines.c.heartbeat + 1, **values).returning(pipelines.c.heartbeat)
        return connection.execute(beat).scalar_one_or_none()

    patch.setattr(Lease, "_heartbeat", anybodys)


def ackset(patch: Patch) -> None:
    """*An ack is monotone per generation: a lower one is ignored by the source*: here the source takes it."""
    patch.setattr(counter_plugin, "MONOTONE", "generation >= known[0]")


def ackgen(patch: Patch) -> None:
    """*An ack of another generation is ignored by the source*: here the source takes it."""
    patch.setattr(counter_plugin, "MONOTONE", "generation != known[0] or upto >= known[1]")
