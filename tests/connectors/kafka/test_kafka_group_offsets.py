"""Offsets that the kafka source commits to a consumer group: for monitors, and never in the way of a run."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition
from lab.kafka_lab import ALL, ROWS, KafkaLab
from lab.waiting import wait_until
from structlog.testing import capture_logs

from conduit_dagster.daemon_threads import has_ended, in_daemon
from conduit_dagster.sdk import Limit

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("commits", [True, False])
def test_a_group_is_told_only_when_it_is_wanted(lab: KafkaLab, commits: bool) -> None:
    topic = lab.server.topic(2)
    lab.server.send(topic, ROWS)
    group = f"g-{topic}"
    source = lab.source(topic, commit_offsets=str(commits).lower(), groupID=group)
    end = source.latest(source.initial(), ALL)
    source.ack(end, 1)
    source.ack(end, 1)
    wanted = end["topics"][topic]["next"] if commits else [-1001, -1001]
    # within close alone, a busy broker's answer might not come in time
    wait_until(lambda: _committed(lab, group, topic, 2) == wanted, "the group's offsets are those")
    source.close()
    assert _committed(lab, group, topic, 2) == wanted


def _committed(lab: KafkaLab, group: str, topic: str, partitions: int = 1) -> list[int]:
    consumer = Consumer({"bootstrap.servers": lab.server.servers, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], 120)
    finally:
        consumer.close()
    return [one.offset for one in found]


def test_an_ack_waits_for_no_broker_that_is_silent(lab: KafkaLab) -> None:
    """Offsets in the group are for monitors only: the run goes on, and a later ack commits them."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    group = f"g-{topic}"
    source = lab.source(topic, commit_offsets="true", groupID=group)
    start = source.initial()
    third = source.latest(start, Limit(3, 10**9))
    end = source.latest(third, ALL)
    source.ack(third, 1)
    with lab.server.frozen():
        acked = in_daemon(lambda: [source.ack(end, 1), source.ack(end, 1)], "acks")
        assert has_ended(acked, 30)

    def is_committed() -> bool:
        source.ack(end, 1)
        return _committed(lab, group, topic) == [len(ROWS)]

    wait_until(is_committed, "a later ack commits the offsets")
    source.close()


def test_offsets_that_waited_for_an_answer_are_committed_at_the_end(lab: KafkaLab) -> None:
    """Otherwise a monitor would show a lag where everything is delivered, until the next run."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    group = f"g-{topic}"
    source = lab.source(topic, commit_offsets="true", groupID=group)
    third = source.latest(source.initial(), Limit(3, 10**9))
    end = source.latest(third, ALL)
    with lab.server.frozen():
        acked = in_daemon(lambda: [source.ack(third, 1), source.ack(end, 1)], "acks")
        assert has_ended(acked, 30)
    wait_until(lambda: _committed(lab, group, topic) == [3], "the first offsets are there")
    source.close()
    wait_until(lambda: _committed(lab, group, topic) == [len(ROWS)], "the last ones follow")


def test_a_topic_that_was_deleted_keeps_no_other_offset_from_its_group(lab: KafkaLab) -> None:
    gone, topic = lab.server.topic(), lab.server.topic()
    for name in (gone, topic):
        lab.server.send(name, ROWS)
    source = lab.source(f"^({gone}|{topic})", commit_offsets="true", on_gone="skip", groupID=f"g-{topic}")
    end = source.latest(source.initial(), ALL)
    lab.server.delete(gone)
    with capture_logs() as logs:
        source.ack(end, 1)
        wait_until(lambda: _committed(lab, f"g-{topic}", topic) == [len(ROWS)], "the other topic's offset is there")
        source.close()
    # a busy broker may take more than two seconds, which is told as well
    assert [one for one in logs if "not answered yet" not in str(one)] == []


def test_a_group_that_others_have_joined_is_told(lab: KafkaLab) -> None:
    """Brokers say no more than that they do not know a member."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    group = f"g-{topic}"
    member = Consumer({"bootstrap.servers": lab.server.servers, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        member.subscribe([topic])
        wait_until(lambda: member.consume(1, 1), "it has joined")
        source = lab.source(topic, commit_offsets="true", groupID=group)
        with capture_logs() as logs:
            source.ack(source.latest(source.initial(), ALL), 1)
            source.close()
    finally:
        member.close()
    # a busy broker may take more than two seconds, which is told as well
    told = [str(one) for one in logs if "not answered yet" not in str(one)]
    assert len(told) == 1 and "has members of its own" in told[0] and "groupID" in told[0]
