"""Delivery hashes in a compacted topic: the claims of one destination, and the messages that change them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec
from confluent_kafka import Consumer, KafkaError, TopicPartition

from conduit_dagster.connectors.kafka.cluster_topics import Cluster
from conduit_dagster.connectors.kafka.kafka_client import client_config, make_client
from conduit_dagster.connectors.kafka.kafka_errors import PASSING, KafkaErrors
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.connectors.kept_hashes import new_floor
from conduit_dagster.sdk import Claimed, Delivery

_FLOOR: Final = "floor"


class DeliveryClaim(msgspec.Struct, frozen=True):
    """The claim stored under a hash."""

    state: str
    """``delivered``, ``split`` or ``nacked``; ``pruned`` under the key of the floor."""
    step: int
    records: int = 0


class ClaimMessage(NamedTuple):
    """A message that stores or removes a claim."""

    name: str
    """The hash, or ``floor``."""
    claim: DeliveryClaim | None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DeliveryClaim).decode


class DeliveryClaims:
    """Claims of one destination. Exact until another producer takes over its transactional id; then they must be read
    again."""

    def __init__(self, owner: str, errors: KafkaErrors) -> None:
        self._owner, self._errors = owner, errors
        self._known: dict[str, DeliveryClaim] = {}

    def state(self, delivery: Delivery) -> Claimed | None:
        """Return the state stored under the delivery's hash, or None."""
        claim = self._known.get(delivery.hash)
        return None if claim is None else cast(Claimed, claim.state)

    def require_known(self, delivery: Delivery) -> None:
        """Raise ``FatalError`` for a delivery so old that its hash may have been removed."""
        floor = self._known.get(_FLOOR)
        if floor is None or delivery.step >= floor.step:
            return
        message = f"step {delivery.step} is older than what the topic of deliveries still knows (step {floor.step})"
        fix = "a run this old must not go on; where the state store was started anew on purpose: set transactional-id"
        raise self._errors.fatal(message, "kafka.step_pruned", fix)

    def putting(self, delivery: Delivery, state: Claimed) -> list[ClaimMessage]:
        """Return the message that stores a claim."""
        return [ClaimMessage(delivery.hash, DeliveryClaim(state, delivery.step, delivery.records))]

    def pruning(self, delivery: Delivery) -> list[ClaimMessage]:
        """Return, at every hundredth step, the messages that remove the claims of steps before :func:`new_floor`."""
        floor = new_floor(delivery)
        if floor is None:
            return []
        old = [name for name, one in self._known.items() if name != _FLOOR and one.step < floor]
        return [ClaimMessage(_FLOOR, DeliveryClaim("pruned", floor)), *(ClaimMessage(name, None) for name in old)]

    def committed(self, messages: Sequence[ClaimMessage]) -> None:
        """Apply committed messages."""
        for name, claim in messages:
            if claim is None:
                self._known.pop(name, None)
            else:
                self._known[name] = claim

    def encoded(self, messages: Sequence[ClaimMessage]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the encoded key and value of each message."""
        for name, claim in messages:
            yield self._key(name), None if claim is None else _encode(claim)

    def _key(self, name: str) -> bytes:
        return f"{self._owner}/{name}".encode()

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a message read from the topic; messages of other destinations are skipped."""
        prefix = self._key("")
        if key is not None and key.startswith(prefix):
            name = key.removeprefix(prefix).decode()
            if "/" in name:
                return  # belongs to an owner whose name starts with ours
            self.committed([ClaimMessage(name, None if value is None else _decode(value))])


class ClaimReader:
    """Reader of the topic of deliveries, from beginning to end."""

    def __init__(self, settings: KafkaDestinationSettings, errors: KafkaErrors, cluster: Cluster) -> None:
        self._settings, self._errors, self._cluster = settings, errors, cluster
        self._topic = settings.deliveries_topic

    def read(self, claims: DeliveryClaims) -> None:
        """Read all committed claims; call it after ``init_transactions`` has ended the open transactions of older
        owners.

        Reads up to the end for ``read_uncommitted``: the last stable offset may precede one of our own hashes while a
        transaction of another pipeline is open, and a missed hash would be written twice.
        """
        found = self._cluster.whole(self._topic)
        consumer = make_client(Consumer, self._config(), self._errors)
        try:
            for partition, (begin, end) in enumerate(found):
                if end > begin:
                    consumer.assign([TopicPartition(self._topic, partition, begin)])
                    self._read(consumer, end, claims)
        finally:
            consumer.close()

    def _config(self) -> dict[str, Any]:
        return client_config(self._settings, self._errors) | {
            "group.id": "conduit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }

    def _read(self, consumer: Consumer, end: int, claims: DeliveryClaims) -> None:
        at, heard = 0, time.monotonic()
        while at < end:
            for message in consumer.consume(1_000, 0) or consumer.consume(1, 1.0):
                error = message.error()
                if error is None:
                    claims.take(message.key(), message.value())
                    at, heard = (message.offset() or 0) + 1, time.monotonic()
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, message.offset() or 0)
                elif error.code() not in PASSING:
                    raise self._errors.verdict(error, f"{self._topic} can't be read", self._topic)
            if at < end and time.monotonic() - heard > self._settings.timeout:
                message = f"{self._topic} can be read to {at} of {end}: a transaction of another pipeline is open"
                fix = "wait for that one; if its run died, start it again or wait for its transaction-timeout"
                raise self._errors.outage(message, "kafka.open_transaction", fix)
