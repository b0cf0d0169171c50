"""Target topics of the kafka destination: named by the settings or by records, missing, and deleted."""

from __future__ import annotations

import secrets

import pytest
from lab.kafka_lab import BY_COLLECTION, KafkaLab, numbered

from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Rejected

pytestmark = pytest.mark.slow


def test_each_record_names_its_topic(lab: KafkaLab) -> None:
    """A missing topic is created; records of several topics in one block keep their order."""
    a, b = lab.server.topic(), f"new-{lab.root.name}-{lab.server.port}"
    names = [{"opencdc.collection": a}, {"opencdc.collection": b}]
    records = [Record(i, names[i % 2], {"i": i}) for i in range(20)]
    lab.deliver(lab.destination(BY_COLLECTION), records)
    assert [value["i"] for value in lab.server.values(a)] == list(range(0, 20, 2))
    assert [value["i"] for value in lab.server.values(b)] == list(range(1, 20, 2))


def test_a_record_that_names_no_topic_is_refused_while_it_is_staged(lab: KafkaLab) -> None:
    """So is one that would write where deliveries or Kafka's own offsets are stored."""
    topic = lab.server.topic()
    names = [topic, "", "a b", "x" * 250, "..", "conduit-deliveries", "__consumer_offsets", topic]
    destination = lab.destination(BY_COLLECTION)
    delivery = lab.stage(destination, [Record(i, {"opencdc.collection": n}, {"i": i}) for i, n in enumerate(names)])
    assert [(one.place, one.nack.code) for one in lab.refused] == [(i, "kafka.topic_name") for i in range(1, 7)]
    destination.publish(delivery)
    assert [value["i"] for value in lab.server.values(topic)] == [0, 7]


def test_topics_that_must_not_be_created(lab: KafkaLab) -> None:
    """One fixed topic: fatal before anything is read. Topics from records: only those are refused, all at once."""
    topic = lab.server.topic()
    with pytest.raises(FatalError) as error:
        lab.destination("none-of-it", create_topics="never").check()
    assert error.value.code == "kafka.no_topic" and "--create --topic none-of-it" in (error.value.fix or "")
    destination = lab.destination(BY_COLLECTION, create_topics="never")
    names = [{"opencdc.collection": topic}, {"opencdc.collection": "missing-1"}]
    records = [Record(i, names[i in (2, 4)], {"i": i}) for i in range(6)]
    with pytest.raises(Rejected) as refused:
        destination.publish(lab.stage(destination, records))
    assert [(one.place, one.nack.code) for one in refused.value.refusals] == [(i, "kafka.no_topic") for i in (2, 4)]
    assert lab.server.read(topic) == []


def test_a_topic_that_can_not_exist_beside_another(lab: KafkaLab) -> None:
    """Kafka takes a dot and an underscore for the same: records that name such a topic are refused, a fixed one is
    fatal."""
    there = lab.server.topic(name=f"{secrets.token_hex(4)}.orders")
    other = there.replace(".", "_")
    destination = lab.destination(BY_COLLECTION)
    records = [Record(i, {"opencdc.collection": other if i in (2, 4) else there}, {"i": i}) for i in range(6)]
    with pytest.raises(Rejected, match="collides with existing topic") as refused:
        destination.publish(lab.stage(destination, records))
    assert [(one.place, one.nack.code) for one in refused.value.refusals] == [(i, "kafka.topic_name") for i in (2, 4)]
    fixed = lab.destination(other)
    with pytest.raises(FatalError, match="collides with existing topic") as error:
        fixed.publish(lab.stage(fixed, records))
    assert error.value.code == "kafka.topic_name"
    assert lab.server.read(there) == []


@pytest.mark.parametrize("is_named", [False, True])
def test_a_topic_that_was_deleted_is_created_again_by_the_next_attempt(lab: KafkaLab, is_named: bool) -> None:
    topic = lab.server.topic()
    destination = lab.destination(BY_COLLECTION if is_named else topic)
    first, second = ([Record(i, {"opencdc.collection": topic}, {"i": i})] for i in range(2))
    lab.deliver(destination, first)
    lab.server.delete(topic)
    destination.close()
    lab.deliver(destination, second)
    assert [value["i"] for value in lab.server.values(topic)] == [1]


def test_a_topic_that_is_deleted_during_a_run_is_an_outage(lab: KafkaLab) -> None:
    """Its records are no nacks, although they name it."""
    topic = lab.server.topic()
    destination = lab.destination(BY_COLLECTION)
    first, second = ([Record(i, {"opencdc.collection": topic}, {"i": i})] for i in range(2))
    lab.deliver(destination, first)
    lab.server.delete(topic)
    destination.fence(2)  # with a client that has yet to ask for the topic
    with pytest.raises(TransientError) as error:
        lab.deliver(destination, second)
    assert error.value.code == "kafka.topic_deleted"
    lab.deliver(destination, second)
    assert [value["i"] for value in lab.server.values(topic)] == [1]


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("creates", ["auto", "never"])
def test_a_topic_that_is_made_anew_during_a_run_is_written_to(lab: KafkaLab, strategy: str, creates: str) -> None:
    """By the next attempt, with the partitions that it has now."""
    topic = lab.server.topic(6)
    destination = lab.destination(topic, strategy=strategy, create_topics=creates, deliveryTimeout="10s")
    lab.deliver(destination, numbered(50))
    lab.server.delete(topic)
    lab.server.topic(2, name=topic)
    delivery = lab.stage(destination, numbered(40))
    with pytest.raises(TransientError, match="was deleted and created again") as error:
        destination.publish(delivery)
    assert error.value.code == "kafka.topic_remade"
    before = len(lab.server.read(topic))
    destination.publish(delivery)
    found = [value["i"] for value in lab.server.values(topic)]
    assert set(found) == set(range(40)) and len(found) == 40 + before
    assert before == 0 or strategy == "at-least-once"
