"""The kafka source after a broker became leader that lacked messages, and others have taken their offsets (KIP-320)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from lab.kafka_cluster import KafkaCluster, metadata_of
from lab.kafka_lab import ALL, KafkaLab
from lab.waiting import wait_until

from conduit_dagster.connectors.kafka import log_truncation
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(cluster: KafkaCluster, tmp_path: Path) -> KafkaLab:
    return KafkaLab(cluster, tmp_path)


def _send(cluster: KafkaCluster, topic: str, values: Sequence[bytes], partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": cluster.servers, "enable.idempotence": True, "log_level": 0})
    for number in range(partitions):
        for value in values:
            producer.produce(topic, value, partition=number)
    assert producer.flush(60) == 0


def _named(name: str, count: int) -> list[bytes]:
    return [f"{name}{i}".encode() for i in range(count)]


def _lose(cluster: KafkaCluster, topic: str) -> None:
    """Make broker 2 the leader, without the messages that it has not; broker 1 led and is gone."""
    cluster.kill(1)
    cluster.revive(2)
    wait_until(lambda: cluster.leader(topic) == 2, "broker 2 leads")


def _shared(cluster: KafkaCluster) -> str:
    """Return a topic of two brokers with five messages, of which the second one is dead."""
    topic = cluster.topic(on=(1, 2), min_insync_replicas="1", unclean_leader_election_enable="true")
    _send(cluster, topic, _named("kept", 5))
    cluster.kill(2)
    wait_until(lambda: metadata_of(cluster.admin, topic).topics[topic].partitions[0].isrs == [1], "1 is alone in sync")
    return topic


def test_messages_at_the_offsets_of_lost_ones_are_not_skipped(lab: KafkaLab, cluster: KafkaCluster) -> None:
    """Five messages were read and lost; of eight new ones, five have their offsets."""
    topic = _shared(cluster)
    _send(cluster, topic, _named("lost", 5))
    source = lab.source(topic, timeout="60s")
    position, records = lab.step(source, source.initial())
    assert len(records) == 10
    _lose(cluster, topic)
    _send(cluster, topic, _named("new", 8))
    for one in (source, lab.source(topic, timeout="60s")):
        with pytest.raises(FatalError) as error:
            one.latest(position, ALL)
        assert error.value.code == "kafka.truncated" and "before offset 10" in error.value.message
    # as the error says: its next offset as the broker has it
    again = {"topics": {topic: {**position["topics"][topic], "next": [5]}}}
    assert [record.after for record in lab.step(source, again)[1]] == _named("new", 8)
    skipping = lab.source(topic, on_gone="skip", timeout="60s")
    assert [record.after for record in lab.step(skipping, position)[1]] == _named("new", 8)[5:]


def test_a_leader_that_has_all_messages_is_read_on(lab: KafkaLab, cluster: KafkaCluster) -> None:
    topic = cluster.topic(on=(1, 2), min_insync_replicas="1")
    _send(cluster, topic, _named("first", 5))
    source = lab.source(topic, timeout="60s")
    position, _ = lab.step(source, source.initial())
    cluster.kill(1)
    wait_until(lambda: cluster.leader(topic) == 2, "broker 2 leads")
    assert source.latest(position, ALL) == position
    _send(cluster, topic, _named("second", 5))
    assert [record.after for record in lab.step(source, position)[1]] == _named("second", 5)


def test_many_partitions_may_take_longer_than_the_timeout_in_all(
    lab: KafkaLab, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader is silent where no partition is answered for within it; each answer takes a second here."""
    topic = cluster.topic(60, on=(1, 2), min_insync_replicas="1")
    _send(cluster, topic, [b"first"], 60)
    source = lab.source(topic, timeout="30s")
    position, _ = lab.step(source, source.initial())
    cluster.kill(1)
    wait_until(lambda: {cluster.leader(topic, number) for number in range(60)} == {2}, "broker 2 leads")
    monkeypatch.setattr(log_truncation, "_SOME", 1)
    monkeypatch.setattr(log_truncation, "time", SimpleNamespace(monotonic=count().__next__))
    assert source.latest(position, ALL) == position


def test_a_step_that_was_planned_before_the_loss_is_refused(lab: KafkaLab, cluster: KafkaCluster) -> None:
    """Its messages are read after it."""
    topic = _shared(cluster)
    _send(cluster, topic, _named("lost", 5))
    source = lab.source(topic, timeout="60s")
    start = source.latest(source.initial(), Limit(7, 10**9))
    end = source.latest(start, ALL)
    _lose(cluster, topic)
    _send(cluster, topic, _named("new", 8))
    assert len(lab.read(source, start, end)) == 3
    with pytest.raises(FatalError) as error:
        source.verify(start, end)
    assert error.value.code == "kafka.truncated" and "before offset 7" in error.value.message
