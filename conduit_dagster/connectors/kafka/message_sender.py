"""Sending a delivery's messages with a client, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from conduit_dagster.connectors.kafka.kafka_client import client_config
from conduit_dagster.connectors.kafka.kafka_errors import KafkaErrors
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.connectors.kafka.staged_messages import MessageGroup, StagedChunk

_WAITING = 200_000
"""Most messages that wait in the client."""
_QUEUE = 1_000_000
"""Room for what one chunk adds to them: the client never refuses one, or a later one could overtake it."""
_BYTES = 64_000_000
"""Most bytes that wait in the client."""
_POLL = 0.01


class SendFailures:
    """What could not be written: as a client's ``on_delivery`` it hears of failed messages only."""

    def __init__(self) -> None:
        self.first: tuple[KafkaError, str] | None = None
        """The first error, and the topic."""
        self.thrown_away = False
        """Whether messages were thrown away."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Note a failed message."""
        if error is not None:
            self.add(error, message.topic() or "")

    def add(self, error: KafkaError, topic: str) -> None:
        """Note the first error. Messages that are thrown away after one tell nothing of their own."""
        if error.code() in _THROWN_AWAY:
            self.thrown_away = True
        elif self.first is None:
            self.first = (error, topic)

    def clear(self) -> None:
        """Forget them, before the next delivery."""
        self.first, self.thrown_away = None, False


_THROWN_AWAY = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def producer_config(settings: KafkaDestinationSettings, errors: KafkaErrors, failures: SendFailures) -> dict[str, Any]:
    """Return the configuration of a producer without transactions."""
    return client_config(settings, errors) | {
        "acks": {"all": "all", "one": 1, "none": 0}[settings.acks],
        # keeps the order within a partition, and writes nothing twice, when it has to send again
        "enable.idempotence": settings.acks == "all",
        # without it only one request at a time keeps the order
        "max.in.flight": 5 if settings.acks == "all" else 1,
        # as Java clients: a key goes to the same partition, whoever writes it
        "partitioner": "murmur2_random",
        "compression.type": settings.compression,
        # a message of just that size has to fit, with what the protocol adds to it
        "message.max.bytes": settings.batch_bytes + 1_024,
        "message.timeout.ms": round(settings.message_timeout * 1_000),
        "linger.ms": settings.linger * 1_000,
        "queue.buffering.max.messages": _QUEUE,
        "queue.buffering.max.kbytes": 2_000_000,
        "delivery.report.only.error": True,
        "on_delivery": failures,
    }


class MessageSender:
    """Sender of chunks with a producer, within bounds of memory. Returns when all are handed over, not when written."""

    def __init__(self, producer: Producer, failures: SendFailures, timeout: float) -> None:
        self._producer, self._failures, self._timeout = producer, failures, timeout
        self._bytes = 0

    def send(self, chunks: Iterator[tuple[int, StagedChunk]], at_half: Callable[[], None], half: float) -> bool:
        """Send the chunks in order; return False as soon as a message failed. ``at_half``: called on the way."""
        sent, passed = 0, False
        for _, chunk in chunks:
            self._make_room(chunk)
            for group in chunk.groups:
                if group.is_plain:
                    self._batch(group)
                else:
                    self._one_by_one(group)
            sent += chunk.records
            if not passed and sent >= half:
                passed = True
                at_half()
            if self._failures.first is not None:
                return False
        return True

    def _batch(self, group: MessageGroup) -> None:
        messages: list[dict[str, Any]] = [
            {"value": value, "key": key} for value, key in zip(group.values, group.keys, strict=True)
        ]
        if self._producer.produce_batch(group.topic, messages) != len(messages):
            for message in messages:
                if (error := message.get("_error")) is not None:
                    self._failures.add(error, group.topic)

    def _one_by_one(self, group: MessageGroup) -> None:
        count = len(group.values)
        columns = group.values, group.keys, group.headers or [None] * count, group.times or [0] * count
        for value, key, headers, stamp in zip(*columns, strict=True):
            own: list[tuple[str, str | bytes | None]] = [*(headers or ())]
            self._producer.produce(group.topic, value, key, timestamp=stamp, headers=own)

    def _make_room(self, chunk: StagedChunk) -> None:
        self._producer.poll(0)
        if self._bytes + chunk.bytes > _BYTES:
            self._wait(0)
            self._bytes = 0
        elif len(self._producer) + chunk.records > _WAITING:
            self._wait(max(0, _WAITING - chunk.records))
        self._bytes += chunk.bytes

    def _wait(self, most: int) -> None:
        """Wait until at most so many messages wait in the client, as long as it makes progress."""
        left, heard = len(self._producer), time.monotonic()
        while left > most and self._failures.first is None:
            self._producer.poll(_POLL)
            now = len(self._producer)
            if now < left:
                left, heard = now, time.monotonic()
            elif time.monotonic() - heard > self._timeout:
                self._failures.add(KafkaError(KafkaError._MSG_TIMED_OUT), "")
