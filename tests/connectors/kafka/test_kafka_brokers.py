"""Kafka connectors on several brokers, of which one dies: what it led, others lead after some seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.kafka_cluster import KafkaCluster
from lab.kafka_lab import ALL, KafkaLab, numbered
from lab.waiting import wait_until

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Delivery

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(cluster: KafkaCluster, tmp_path: Path) -> KafkaLab:
    return KafkaLab(cluster, tmp_path)


def test_the_controller_of_a_client_dies(lab: KafkaLab, cluster: KafkaCluster) -> None:
    """Any broker can be a client's controller: the client waits for it without end, and others would answer."""
    source = lab.source(cluster.topic(), timeout="20s")
    source.check()
    cluster.kill(_controller(source))
    source.check()
    source.close()


def test_a_partition_whose_leader_dies_is_waited_for(lab: KafkaLab, cluster: KafkaCluster) -> None:
    """The client gives -1001 for its offsets, and no error: such a position could never be read."""
    topic = cluster.topic(partitions=3)
    lab.deliver(lab.destination(topic), numbered(50))
    assert len(cluster.read(topic)) == 50
    source = lab.source(topic)
    latest = lab.source(topic, start_from="latest")
    start, end = source.initial(), latest.initial()
    cluster.kill(cluster.leader(topic))
    # it takes some seconds until another broker leads the partition
    assert source.latest(start, ALL)["topics"][topic]["next"] == end["topics"][topic]["next"]
    assert latest.place(latest.initial()) == latest.place(end)
    assert len(lab.step(source, start)[1]) == 50


def test_a_partition_without_a_leader_is_an_outage(lab: KafkaLab, cluster: KafkaCluster) -> None:
    topic = cluster.topic(partitions=3, replicas=1)
    source = lab.source(topic, timeout="20s")
    start = source.initial()
    cluster.kill(cluster.leader(topic))
    with pytest.raises(TransientError, match=f"offsets of {topic} can't be fetched"):
        source.latest(start, ALL)


def test_hashes_are_read_from_a_topic_whose_leader_has_died(lab: KafkaLab, cluster: KafkaCluster) -> None:
    """While nothing else is down: without its hash, a delivery would be written twice."""
    coordinator = cluster.leader("__transaction_state")
    dies = next(node for node in cluster.nodes if node != coordinator)
    topic, deliveries = cluster.topic(lead=coordinator), cluster.topic(lead=dies, cleanup_policy="compact")
    first = lab.destination(topic, **{"deliveries-topic": deliveries})
    delivery = lab.stage(first, numbered(10))
    first.publish(delivery)
    second = lab.destination(topic, **{"deliveries-topic": deliveries})
    second.check()
    wait_until(lambda: _controller(second) != dies, "another broker is the client's controller")
    cluster.kill(dies)
    second.fence(2)
    second.publish(delivery)
    assert len(cluster.read(topic)) == 10


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
def test_too_few_replicas_in_sync_are_told(lab: KafkaLab, cluster: KafkaCluster, strategy: str) -> None:
    """Brokers are reachable, and take no messages; once all are back, the delivery is there."""
    topic = cluster.topic(min_insync_replicas="3")
    destination = lab.destination(topic, strategy=strategy, deliveryTimeout="10s")
    destination.check()
    delivery = lab.stage(destination, numbered(10))
    cluster.kill(next(node for node in cluster.nodes if node != cluster.leader(topic)))
    with pytest.raises(TransientError, match=f"2 of 3 replicas of {topic}, partition 0, are in sync") as error:
        destination.publish(delivery)
    assert error.value.code == "kafka.out_of_sync"
    cluster.mend()
    wait_until(lambda: _run_again(lab, topic, strategy, delivery), "the next run, or the one after it, has delivered")
    # without a transaction, the leader had appended them before it missed the other replica
    assert len(cluster.read(topic)) == 10 or strategy == "at-least-once"


def _run_again(lab: KafkaLab, topic: str, strategy: str, delivery: Delivery) -> bool:
    """Do what the next run does; brokers that were away may have ended the transactions of this client, or still do."""
    again = lab.destination(topic, strategy=strategy)
    again.check()
    again.fence(2)
    try:
        if strategy == "at-least-once" or not again.holds(delivery):
            again.publish(delivery)
    except TransientError as error:
        assert error.code == "kafka.fenced"
        return False
    return True


def _controller(connector: Any) -> int:
    """Return the broker that a connector's client takes for the controller."""
    return connector._cluster.client.list_topics(timeout=60).controller_id
