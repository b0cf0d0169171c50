"""Brokers that take messages too slowly for a delivery, as with a quota."""

from __future__ import annotations

import secrets

import pytest
from lab.kafka_lab import KafkaLab
from lab.kafka_server import KafkaServer

from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import TransientError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slow_client(kafka_server: KafkaServer) -> str:
    """A client id whose messages the broker takes at 200 KB a second."""
    name = f"slow-{secrets.token_hex(4)}"
    kafka_server.limit(name, producer_byte_rate=200_000)
    return name


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
def test_slow_brokers_are_not_said_to_be_down(lab: KafkaLab, slow_client: str, strategy: str) -> None:
    """There is nothing to start or to correct at the brokers, and a repetition ends the same way."""
    more = {"clientID": slow_client, "compression": "none", "timeout": "5s"}
    topic = lab.server.topic()
    destination = lab.destination(topic, strategy=strategy, deliveryTimeout="2s", **more)
    destination.fence(1)
    delivery = lab.stage(destination, [Record(n, {}, {"i": n, "text": "x" * 10_000}) for n in range(300)])
    with pytest.raises(TransientError, match="not taken all messages within 2s") as error:
        destination.publish(delivery)
    assert error.value.code == "kafka.delivery_timeout" and "raise deliveryTimeout" in (error.value.fix or "")
    destination.close()
    patient = lab.destination(topic, strategy=strategy, **more)
    patient.publish(delivery)
    assert {value["i"] for value in lab.server.values(topic)} == set(range(300))
