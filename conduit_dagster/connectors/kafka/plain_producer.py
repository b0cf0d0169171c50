"""The driver's producer for at-least-once and at-most-once: no transaction, and nothing twice within a session."""

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
    """A producer that is made when it is needed, and made anew after an error."""

    def __init__(self, settings: KafkaDestinationSettings, errors: KafkaErrors) -> None:
        self._settings, self._errors = settings, errors
        self._producer: Producer | None = None
        self.failures = SendFailures()

    def send(self, send: Callable[[Producer], bool]) -> None:
        """Run ``send`` and return when the brokers have confirmed every message. Raises ``SendError`` otherwise."""
        if self._producer is None:
            config = producer_config(self._settings, self._errors, self.failures)
            self._producer = make_client(Producer, config, self._errors)
        self.failures.clear()
        try:
            send(self._producer)
            self._flush(self._producer)
        except BaseException as error:
            # what still waits in the client must not be written behind a repetition of it
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
        """Let the producer go, with what was not written."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException, RuntimeError):
                producer.purge(in_queue=True, in_flight=True)
