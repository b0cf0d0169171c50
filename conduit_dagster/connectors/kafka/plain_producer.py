"""The driver's producer for at-least-once and at-most-once: no transactions; no duplicates within a session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from conduit_dagster.connectors.kafka.delivery_session import SendError
from conduit_dagster.connectors.kafka.kafka_client import make_client
from conduit_dagster.connectors.kafka.kafka_errors import KafkaErrors
from conduit_dagster.connectors.kafka.message_sender import SendFailures, producer_config
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings


class PlainProducer:
    """A producer created on demand, and again after an error."""

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
            send(self._producer)
            self._flush(self._producer)
        except BaseException as error:
            # queued messages must not be written after the delivery is repeated
            self.close()
            if isinstance(error, KafkaException):
                raise self._errors.verdict(error, "messages can't be written") from None
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
            with suppress(KafkaException, RuntimeError):
                producer.purge(in_queue=True, in_flight=True)
