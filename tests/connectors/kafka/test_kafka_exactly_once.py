"""That a delivery of the kafka destination is there once: transactions, hashes, owners that were fenced."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from lab.kafka_lab import KafkaLab, numbered
from lab.kafka_server import running_kafka
from lab.kills import at, crashing
from lab.waiting import wait_until

from conduit_dagster.connectors import kept_hashes
from conduit_dagster.connectors.kafka.delivery_session import ClaimMessage, DeliveryClaim
from conduit_dagster.connectors.kafka.kafka_cluster import Cluster, WholeTopic
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import AlreadyClaimed

pytestmark = pytest.mark.slow


def test_what_readers_see_of_a_delivery_that_was_aborted(lab: KafkaLab) -> None:
    """A process that dies in the middle, and its repetition: once for ``read_committed``, twice for others."""
    topic = lab.server.topic()
    first = lab.destination(topic)
    delivery = lab.stage(first, numbered(4_000))
    with crashing("mid-publish"):
        first.publish(delivery)
    # as a kill leaves it: an open transaction with some of the messages
    second = lab.destination(topic)
    second.fence(2)
    second.publish(delivery)
    expected = Counter(range(4_000))
    for _ in range(2):
        assert Counter(value["i"] for value in lab.server.values(topic)) == expected
    assert second.holds(delivery) and lab.destination(topic).holds(delivery)


def test_an_aborted_transaction_is_seen_by_readers_of_everything(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    destination = lab.destination(topic, linger="0s")
    delivery = lab.stage(destination, numbered(3_000), block=500)

    def fail() -> None:
        # everything sent so far has reached the broker
        assert destination._session._producer.flush(30) == 0
        raise TransientError("an outage", code="test.outage")

    with pytest.raises(TransientError), at("mid-publish", fail):
        destination.publish(delivery)
    assert lab.server.read(topic) == []
    destination.publish(delivery)
    committed = [value["i"] for value in lab.server.values(topic)]
    every = Counter(value["i"] for value in lab.server.values(topic, "read_uncommitted"))
    assert committed == list(range(3_000))
    assert every[0] == 2 and every[2_999] == 1


def test_a_delivery_longer_than_its_transaction_may_take_says_so(lab: KafkaLab) -> None:
    """Brokers end its transaction, and refuse the rest as they refuse an owner that was fenced."""
    topic = lab.server.topic()
    # as long as the second attempt may take
    destination = lab.destination(topic, **{"transaction-timeout": "5s"})
    slow, cluster = lab.stage(destination, numbered(3)), destination._cluster

    def is_ended() -> bool:
        ends = [high for _, high in cluster.whole(topic).ends]
        return any(ends) and list(cluster.known([topic])[topic].high) == ends

    with pytest.raises(TransientError) as error, at("mid-publish", lambda: wait_until(is_ended, "the brokers end it")):
        destination.publish(slow)
    assert error.value.code == "kafka.transaction_timeout" and "5s" in error.value.message
    assert lab.server.read(topic) == []
    destination.publish(slow)
    assert len(lab.server.read(topic)) == 3


def test_a_process_that_is_frozen_for_longer_says_so_too(lab: KafkaLab) -> None:
    """Its messages time out before it learns that brokers have ended its transaction; they are up."""
    topic = lab.server.topic()
    destination = lab.destination(topic, **{"transaction-timeout": "3s"})
    destination.fence(1)
    delivery = lab.stage(destination, numbered(10))
    freeze = f"kill -STOP {os.getpid()}; sleep 6; kill -CONT {os.getpid()}"
    with pytest.raises(TransientError) as error, at("mid-publish", lambda: subprocess.run(["sh", "-c", freeze])):
        destination.publish(delivery)
    assert error.value.code == "kafka.transaction_timeout"
    destination.publish(delivery)
    assert len(lab.server.read(topic)) == 10


def test_an_owner_that_was_fenced_writes_nothing(lab: KafkaLab) -> None:
    """In the middle of a transaction another run takes over: the old one gets a transient error."""
    topic = lab.server.topic()
    old, new = lab.destination(topic), lab.destination(topic)
    old.fence(1)
    delivery = lab.stage(old, numbered(100))

    def take_over() -> None:
        new.fence(2)
        assert not new.holds(delivery)
        new.publish(delivery)

    with pytest.raises(TransientError) as error, at("mid-publish", take_over):
        old.publish(delivery)
    assert error.value.code == "kafka.fenced"
    assert [value["i"] for value in lab.server.values(topic)] == list(range(100))
    assert old.holds(delivery)  # it notices at its next look
    old.publish(delivery)
    assert len(lab.server.read(topic)) == 100


def test_a_claim_decides_against_a_frozen_owner(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    old, new = lab.destination(topic), lab.destination(topic)
    delivery = lab.stage(old, numbered(10))
    with pytest.raises(TransientError), at("mid-publish", lambda: new.claim(delivery, "split")):
        old.publish(delivery)
    with pytest.raises(AlreadyClaimed):
        old.publish(delivery)
    assert lab.server.read(topic) == []


def test_a_delivery_without_records_writes_nothing(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    destination = lab.destination(topic)
    destination.publish(lab.stage(destination))
    assert not destination.holds(lab.stage(destination))


def test_an_open_transaction_of_another_pipeline_does_not_hide_a_hash(lab: KafkaLab) -> None:
    """The last stable offset is before our hash: it is waited for, and not mistaken for the end."""
    topic, deliveries = lab.server.topic(), lab.server.topic(cleanup_policy="compact")
    mine = lab.destination(topic, deliveries_topic=deliveries)
    other = lab.destination(lab.server.topic(), deliveries_topic=deliveries)
    mine.fence(1)
    delivery, foreign = lab.stage(mine, numbered(3)), lab.stage(other, numbered(3))
    session = other._session
    with session.opened() as producer:
        producer.begin_transaction()
        for key, value in session.claims.encoded(session.claims.putting(foreign, "delivered")):
            producer.produce(deliveries, value, key)
        producer.flush(30)
        mine.publish(delivery)
        again = lab.destination(topic, deliveries_topic=deliveries, timeout="5s")
        with pytest.raises(TransientError, match="a transaction of another pipeline is open") as error:
            again.holds(delivery)
        assert error.value.code == "kafka.open_transaction"
        assert f"find-hanging --topic {deliveries}" in (error.value.fix or "")
        producer.abort_transaction(30)
    assert again.holds(delivery)
    again.publish(delivery)
    assert len(lab.server.read(topic)) == 3


def test_brokers_that_fall_silent_are_not_said_to_have_an_open_transaction(
    lab: KafkaLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While hashes are read: nobody's transaction would be found."""
    topic, deliveries = lab.server.topic(), lab.server.topic(cleanup_policy="compact")
    lab.deliver(lab.destination(topic, deliveries_topic=deliveries), numbered(3))
    again = lab.destination(topic, deliveries_topic=deliveries, timeout="2s")
    with ExitStack() as stack:
        whole = Cluster.whole

        def and_freeze(cluster: Cluster, name: str) -> WholeTopic:
            found = whole(cluster, name)
            stack.enter_context(lab.server.frozen())
            return found

        monkeypatch.setattr(Cluster, "whole", and_freeze)
        with pytest.raises(TransientError) as error:
            again.fence(1)
    assert error.value.code == "kafka.unreachable"


def test_a_transaction_timeout_that_brokers_do_not_allow_is_fatal(lab: KafkaLab) -> None:
    """A quarter of an hour, unless the brokers' settings say otherwise."""
    destination = lab.destination(lab.server.topic(), **{"transaction-timeout": "1h"})
    with pytest.raises(FatalError, match="larger than the maximum value allowed") as error:
        destination.fence(1)
    assert error.value.code == "kafka.refused" and "lower transaction-timeout" in (error.value.fix or "")


def test_brokers_without_transactions_are_not_said_to_be_down(tmp_path: Path) -> None:
    """As with one broker and the default of three replicas."""
    with running_kafka("transaction.state.log.replication.factor=3") as server:
        destination = KafkaLab(server, tmp_path).destination(server.topic(), timeout="3s")
        with pytest.raises(TransientError, match="answer, but none coordinates transactions") as error:
            destination.fence(1)
    assert error.value.code == "kafka.no_coordinator"
    assert "transaction.state.log.replication.factor" in (error.value.fix or "")


def test_old_hashes_are_dropped(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a delivery of such an old step is refused rather than written twice, also by another process."""
    monkeypatch.setattr(kept_hashes, "KEPT_STEPS", 100)
    monkeypatch.setattr(kept_hashes, "_EVERY", 1)
    topic = lab.server.topic()
    destination = lab.destination(topic)
    old, kept = lab.stage_as(99, destination, numbered(1)), lab.stage_as(100, destination, numbered(1))
    for delivery in (old, kept, lab.stage_as(200, destination, numbered(1))):
        destination.publish(delivery)
    for one in (destination, lab.destination(topic)):
        assert one.holds(kept) and not one.holds(old)
        with pytest.raises(FatalError) as error:
            one.publish(old)
        assert error.value.code == "kafka.step_pruned"
    assert len(lab.server.read(topic)) == 3


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_the_newest_floor_counts_whichever_partition_has_it(lab: KafkaLab, places: tuple[int, int]) -> None:
    """Partitions that are added to the topic of deliveries take keys from others, which keep their old messages."""
    deliveries = lab.server.topic(partitions=2, cleanup_policy="compact")
    destination = lab.destination(lab.server.topic(), deliveries_topic=deliveries)
    with destination._session.opened():
        claims = destination._session.claims
    producer = Producer({"bootstrap.servers": lab.server.servers})
    for partition, step in zip(places, (100, 200), strict=True):
        [(key, value)] = claims.encoded([ClaimMessage("floor", DeliveryClaim("pruned", step))])
        producer.produce(deliveries, value, key, partition)
    producer.flush(30)
    with pytest.raises(FatalError, match="step 200") as error:
        destination.fence(1)
        destination.publish(lab.stage_as(150, destination, numbered(1)))
    assert error.value.code == "kafka.step_pruned"


def test_a_new_topic_of_deliveries_is_compacted_while_it_is_small(lab: KafkaLab) -> None:
    """Each start reads what is not compacted yet."""
    deliveries = f"deliveries-{lab.server.topic()}"
    lab.destination(lab.server.topic(), deliveries_topic=deliveries).check()
    resource = ConfigResource(ResourceType.TOPIC, deliveries)
    found = lab.server.admin.describe_configs([resource])[resource].result(60)
    assert found["cleanup.policy"].value == "compact"
    assert int(found["segment.bytes"].value) <= 100 << 20


def test_the_topic_of_deliveries_must_be_compacted(lab: KafkaLab) -> None:
    """Retention would remove hashes."""
    deliveries = lab.server.topic(cleanup_policy="delete")
    destination = lab.destination(lab.server.topic(), deliveries_topic=deliveries)
    for call in (destination.check, lambda: destination.fence(1)):
        with pytest.raises(FatalError) as error:
            call()
        assert error.value.code == "kafka.not_compacted"
        assert f"--entity-name {deliveries} --add-config cleanup.policy=compact" in (error.value.fix or "")


@pytest.mark.slow
def test_an_id_that_brokers_have_forgotten_is_told_and_is_there_again(tmp_path: Path) -> None:
    """After days without a delivery, as a quiet pipeline has them; the topic's hashes are known still."""
    expiring = "transactional.id.expiration.ms=1000\ntransaction.remove.expired.transaction.cleanup.interval.ms=200"
    with running_kafka(expiring) as server:
        lab, topic = KafkaLab(server, tmp_path), server.topic()
        destination = lab.destination(topic)
        destination.fence(1)
        first = lab.stage(destination, numbered(3))
        destination.publish(first)
        second = lab.stage(destination, numbered(3))

        def is_forgotten() -> bool:
            return any(one.value() is None for one in server.read("__transaction_state", "read_uncommitted"))

        wait_until(is_forgotten, "the brokers have forgotten the id")
        with pytest.raises(TransientError) as error:
            destination.publish(second)
        assert "transactional.id.expiration.ms" in str(error.value.fix)
        assert destination.holds(first) and not destination.holds(second)
        destination.publish(second)
        assert len(server.read(topic)) == 6


@pytest.mark.slow
def test_a_topic_of_deliveries_that_is_deleted_in_a_run_is_named(lab: KafkaLab) -> None:
    """Brokers refuse the transaction without the topic's name. The next run makes it anew."""
    more = {"deliveries-topic": lab.server.topic(cleanup_policy="compact"), "deliveryTimeout": "6s"}
    topic = lab.server.topic()
    destination = lab.destination(topic, **more)
    lab.deliver(destination, numbered(3))
    delivery = lab.stage(destination, numbered(3))
    lab.server.delete(more["deliveries-topic"])
    with pytest.raises(FatalError) as error:
        destination.publish(delivery)
    assert error.value.code == "kafka.no_topic" and more["deliveries-topic"] in error.value.message
    again = lab.destination(topic, **more)
    again.fence(2)
    again.publish(delivery)
    assert len(lab.server.read(topic)) == 6 and again.holds(delivery)
