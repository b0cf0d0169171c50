"""Sending of a delivery's messages through a producer, tracking of failures, and the producer without transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from conduit_dagster.connectors.kafka.kafka_client import (
    LOST,
    KafkaErrors,
    client_config,
    fatal_errors,
    kafka_error,
    make_client,
)
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.connectors.kafka.staged_messages import MessageGroup, StagedChunk

_WAITING = 200_000
"""Maximum number of messages in the producer's queue."""
_QUEUE = 1_000_000
"""Queue capacity, with room for one more chunk: the producer never refuses a message, after which a later one could
overtake it."""
_BYTES = 64_000_000
"""Maximum bytes in the producer's queue."""
_LARGEST = 1_000_000_000
"""Maximum bytes of a message that the library takes as a limit."""
_POLL = 0.01


class SendError(Exception):
    """Messages could not be written. No message of their transaction is visible."""

    def __init__(self, error: KafkaError, topic: str, is_late: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.topic = topic
        self.is_late = is_late
        """Whether brokers may have ended the transaction: it was open for longer than ``transaction-timeout``."""


class SendFailures:
    """Delivery failures, collected as ``on_delivery`` of a producer, which is called for failed messages only."""

    def __init__(self) -> None:
        self.first: tuple[KafkaError, str] | None = None
        """The first error, with its topic."""
        self.thrown_away = False
        """Whether messages were purged."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Record a failed message."""
        if error is not None:
            self.add(error, message.topic() or "")

    def add(self, error: KafkaError, topic: str) -> None:
        """Record the first error. Messages purged after an error are no errors of their own."""
        if error.code() in _THROWN_AWAY:
            self.thrown_away = True
        elif self.first is None:
            self.first = (error, topic)

    def clear(self) -> None:
        """Reset before the next delivery."""
        self.first, self.thrown_away = None, False


_THROWN_AWAY = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def producer_config(settings: KafkaDestinationSettings, errors: KafkaErrors, failures: SendFailures) -> dict[str, Any]:
    """Return the configuration of a producer without transactions."""
    return client_config(settings, errors) | {
        "acks": {"all": "all", "one": 1, "none": 0}[settings.acks],
        # keeps the order within a partition and writes no duplicates on retries
        "enable.idempotence": settings.acks == "all",
        # without idempotence, order requires a single request in flight
        "max.in.flight": 5 if settings.acks == "all" else 1,
        # the partitioner of Java clients: a key goes to the same partition from any client
        "partitioner": "murmur2_random",
        "compression.type": settings.compression,
        # a message of exactly that size must fit, with the overhead of the protocol
        "message.max.bytes": min(settings.batch_bytes + 1_024, _LARGEST),
        "message.timeout.ms": round(settings.message_timeout * 1_000),
        "linger.ms": settings.linger * 1_000,
        "queue.buffering.max.messages": _QUEUE,
        "queue.buffering.max.kbytes": 2_000_000,
        "delivery.report.only.error": True,
        "on_delivery": failures,
    }


class MessageSender:
    """Sender of chunks through a producer, with bounded memory. Returns once all messages are queued, not once they are
    written."""

    def __init__(self, producer: Producer, failures: SendFailures, timeout: float) -> None:
        self._producer, self._failures, self._timeout = producer, failures, timeout
        self._bytes = 0

    def send(self, chunks: Iterator[tuple[int, StagedChunk]], at_half: Callable[[], None], half: float) -> bool:
        """Send the chunks in order; return False as soon as a message has failed. Calls ``at_half`` after ``half``
        records."""
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
            try:
                self._producer.produce(group.topic, value, key, timestamp=stamp, headers=own)
            except KafkaException as error:
                self._failures.add(kafka_error(error), group.topic)
                return

    def _make_room(self, chunk: StagedChunk) -> None:
        self._producer.poll(0)
        if self._bytes + chunk.bytes > _BYTES:
            self._wait(0)
            self._bytes = 0
        elif len(self._producer) + chunk.records > _WAITING:
            self._wait(max(0, _WAITING - chunk.records))
        self._bytes += chunk.bytes

    def _wait(self, most: int) -> None:
        """Wait until at most ``most`` messages are queued; time out without progress."""
        left, heard = len(self._producer), time.monotonic()
        while left > most and self._failures.first is None:
            self._producer.poll(_POLL)
            now = len(self._producer)
            if now < left:
                left, heard = now, time.monotonic()
            elif time.monotonic() - heard > self._timeout:
                self._failures.add(KafkaError(KafkaError._MSG_TIMED_OUT), "")


def purge(producer: Producer) -> None:
    """Throw away the messages that a producer has not sent, before it is dropped."""
    with suppress(KafkaException, RuntimeError):
        producer.purge(in_queue=True, in_flight=True)


class PlainProducer:
    """The driver's producer for at-least-once and at-most-once: no transactions; no duplicates within a session.

    Created on demand, and again after an error.
    """

    def __init__(self, settings: KafkaDestinationSettings, errors: KafkaErrors) -> None:
        self._settings, self._errors = settings, errors
        self._producer: Producer | None = None
        self.failures = SendFailures()

    def send(self, send: Callable[[Producer], bool]) -> None:
        """Run ``send`` and wait until the brokers have acknowledged every message. Raises ``SendError`` otherwise."""
        if self._producer is None:
            config = producer_config(self._settings, self._errors, self.failures)
            self._producer = make_client(Producer, config, self._errors)
        self.failures.clear()
        try:
            with fatal_errors():
                send(self._producer)
                self._flush(self._producer)
        except BaseException as error:
            # queued messages must not be written after the delivery is repeated
            self.close()
            if isinstance(error, KafkaException):
                found = kafka_error(error)
                first = self.failures.first if found.code() == LOST else None
                raise SendError(*(first or (found, ""))) from None
            raise

    def _flush(self, producer: Producer) -> None:
        left = producer.flush(self._settings.message_timeout + self._settings.timeout)
        if self.failures.first is None and (left or self.failures.thrown_away):
            self.failures.add(KafkaError(KafkaError._MSG_TIMED_OUT), "")
        if self.failures.first is not None:
            raise SendError(*self.failures.first)

    def close(self) -> None:
        """Drop the producer, with its unsent messages."""
        producer, self._producer = self._producer, None
        if producer is not None:
            purge(producer)
