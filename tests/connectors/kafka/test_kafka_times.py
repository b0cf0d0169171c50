"""Times that brokers refuse: a client's clock that is wrong is no record's fault, a record's own time is."""

from __future__ import annotations

import pytest
from lab.kafka_lab import KafkaLab, child, numbered

from conduit_dagster.connectors.kafka.destination import BatchRefusedError
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Rejected

pytestmark = pytest.mark.slow
_PAST = {"message_timestamp_before_max_ms": "0"}
"""Has brokers refuse what a client's clock says, as if it were slow: a message takes longer than that to them."""


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
def test_a_clock_that_is_wrong_nacks_no_record(lab: KafkaLab, strategy: str) -> None:
    """All would become dead letters, one by one: of several messages, brokers say only that they are refused."""
    topic = lab.server.topic(**_PAST)
    delivery = lab.stage(lab.destination(topic, strategy=strategy), numbered(10))
    # each is another client: such brokers refuse the end of a transaction as well, until it takes no millisecond
    with pytest.raises(BatchRefusedError):
        lab.destination(topic, strategy=strategy, transactional_id=f"{topic}-a").publish(delivery)
    with pytest.raises(TransientError, match=topic) as error:
        lab.destination(topic, strategy=strategy, transactional_id=f"{topic}-b").publish(child(delivery, 3))
    assert error.value.code == "kafka.clock" and "clock" in (error.value.fix or ""), error.value


@pytest.mark.parametrize(
    ("config", "kind", "code"),
    [(_PAST, TransientError, "kafka.clock"), ({"max_message_bytes": "60"}, FatalError, "kafka.refused")],
)
def test_a_hash_that_is_refused_nacks_no_record(
    lab: KafkaLab, config: dict[str, str], kind: type[Exception], code: str
) -> None:
    topic, deliveries = lab.server.topic(), lab.server.topic(cleanup_policy="compact", **config)
    destination = lab.destination(topic, deliveries_topic=deliveries, timestamp="createdAt")
    delivery = lab.stage(destination, numbered(1))
    with pytest.raises(kind) as error:
        destination.publish(delivery)
    assert getattr(error.value, "code", "") == code
    assert lab.server.read(topic) == []


def test_a_time_of_a_record_that_is_refused_nacks_it(lab: KafkaLab) -> None:
    topic = lab.server.topic(message_timestamp_before_max_ms="3600000")
    destination = lab.destination(topic, timestamp="createdAt")
    with pytest.raises(Rejected) as error:
        destination.publish(lab.stage(destination, [Record(1, {"opencdc.createdAt": "1000000000"}, {"i": 1}, b"k")]))
    assert error.value.nack.code == "kafka.invalid_timestamp"
