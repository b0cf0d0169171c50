"""The kafka destination: a message's content, which records are refused, and that a delivery is there once."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from lab.kafka_lab import BY_COLLECTION, KafkaLab, child, numbered
from lab.kafka_server import KafkaServer, running_kafka
from lab.kills import at, crashing
from lab.waiting import wait_until
from pydantic import ValidationError

from conduit_dagster.connectors import kept_hashes
from conduit_dagster.connectors.kafka.destination import BatchRefusedError, KafkaDestination
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import AlreadyClaimed, Keys, Rejected

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(kafka_server: KafkaServer, tmp_path: Path) -> KafkaLab:
    return KafkaLab(kafka_server, tmp_path)


# -- what a message holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once", "at-most-once"])
def test_payloads_and_keys(lab: KafkaLab, strategy: str) -> None:
    """Raw data unchanged, including line feeds; a document as JSON; no payload is a tombstone, no key is none."""
    topic = lab.server.topic()
    destination = lab.destination(topic, strategy=strategy)
    records = [
        Record(0, {}, b"raw\n\xff", b"\x00k"),
        Record(1, {}, {"a": 1}, {"id": 7}),
        Record(2, {}, None, b"gone", operation="delete"),
        Record(3, {}, b"", None),
    ]
    lab.deliver(destination, records)
    assert [(m.key(), m.value()) for m in lab.server.read(topic)] == [
        (b"\x00k", b"raw\n\xff"), (b'{"id":7}', b'{"a":1}'), (b"gone", None), (None, b""),
    ]  # fmt: skip


def test_the_record_as_conduit_writes_it(lab: KafkaLab) -> None:
    """The default format, with base64 for raw data."""
    topic = lab.server.topic()
    destination = lab.destination(topic, **{"sdk.record.format": "opencdc/json"})
    lab.deliver(destination, [Record(5, {"m": "x"}, {"text": "a\nb"}, b"k"), Record(6, {}, b"raw")])
    first, second = lab.server.values(topic)
    assert first == {
        "position": "NQ==", "operation": "create", "metadata": {"m": "x"}, "key": "aw==",
        "payload": {"before": None, "after": {"text": "a\nb"}},
    }  # fmt: skip
    assert second["payload"]["after"] == "cmF3"


def test_a_template_may_give_several_lines(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    settings = {"sdk.record.format": "template", "sdk.record.format.options": "a\n{{ .Payload.After.i }}"}
    lab.deliver(lab.destination(topic, **settings), numbered(2))
    assert [m.value() for m in lab.server.read(topic)] == [b"a\n0", b"a\n1"]


def test_headers_pass_through_in_order_with_records_that_have_none(lab: KafkaLab) -> None:
    """Also one that is not text; the order of a key is the same in both ways of writing."""
    topic = lab.server.topic()
    plain, headed = {"x": "y"}, {"kafka.header.a": "1", "kafka.header.b.base64": "/w=="}
    records = [Record(i, headed if i in (2, 3) else plain, b"%d" % i, b"k") for i in range(6)]
    lab.deliver(lab.destination(topic), records)
    found = lab.server.read(topic)
    assert [m.value() for m in found] == [b"%d" % i for i in range(6)]
    assert [m.headers() for m in found][1:4] == [None, [("a", b"1"), ("b", b"\xff")], [("a", b"1"), ("b", b"\xff")]]
    other = lab.server.topic()
    lab.deliver(lab.destination(other, headers="none"), records)
    assert not any(m.headers() for m in lab.server.read(other))


def test_headers_from_kafka_to_kafka_are_the_same(lab: KafkaLab) -> None:
    """Also text under a name that looks like that of encoded bytes."""
    topic, other = lab.server.topic(), lab.server.topic()
    headers = [("a", b"x"), ("b", b"\xff"), ("sum.base64", b"hello"), ("c.base64", b"/w=="), ("d.base64", b"\xff")]
    lab.server.send(topic, [(b"k", b"v")], headers=headers)
    source = lab.source(topic)
    lab.deliver(lab.destination(other), lab.step(source, source.initial())[1])
    assert [m.headers() for m in lab.server.read(other)] == [headers]


def test_the_time_of_a_message(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    records = [Record(0, {"opencdc.createdAt": "1600000000123456789"}, b"x"), Record(1, {}, b"y")]
    lab.deliver(lab.destination(topic, timestamp="createdAt"), records)
    first, second = lab.server.read(topic)
    assert first.timestamp()[1] == 1_600_000_000_123
    assert second.timestamp()[1] > 1_700_000_000_000


def test_keys_go_where_java_clients_send_them(lab: KafkaLab) -> None:
    """Murmur2: the partitions that Kafka's own producer takes for these keys; and in order within each."""
    topic = lab.server.topic(5)
    lab.deliver(lab.destination(topic), numbered(700))
    found = lab.server.read(topic)
    by_key: dict[bytes, list[Any]] = {}
    for message in found:
        by_key.setdefault(message.key() or b"", []).append(message)
    assert {key: mine[0].partition() for key, mine in by_key.items()} == {key: _java(key, 5) for key in by_key}
    for key, mine in by_key.items():
        assert len({message.partition() for message in mine}) == 1
        assert [json.loads(m.value())["i"] for m in mine] == list(range(int(key), 700, 7))


def _java(key: bytes, partitions: int) -> int:
    """``Utils.toPositive(Utils.murmur2(key)) % partitions``, as the protocol's clients agree on it."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    for i in range(0, len(key) // 4 * 4, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = key[len(key) // 4 * 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


# -- sizes --------------------------------------------------------------------------------------------------------


def test_a_message_that_is_too_large_is_refused_while_it_is_staged(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    destination = lab.destination(topic, batchBytes="2000")
    records = [Record(i, {}, b"x" * size, b"k" * 10) for i, size in enumerate((10, 1_995, 1_990, 10))]
    delivery = lab.stage(destination, records)
    assert [(one.place, one.nack.code) for one in lab.refused] == [(1, "kafka.too_large")]
    destination.publish(delivery)
    assert [len(m.value() or b"") for m in lab.server.read(topic)] == [10, 1_990, 10]


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
def test_a_message_that_is_too_large_for_its_topic(lab: KafkaLab, strategy: str) -> None:
    """Brokers refuse the batch without naming the record: the delivery is sent in pieces, and one record is refused."""
    topic = lab.server.topic(max_message_bytes="3000")
    destination = lab.destination(topic, strategy=strategy, compression="none")
    delivery = lab.stage(destination, [Record(i, {}, b"x" * (9_000 if i == 1 else 10)) for i in range(3)])
    with pytest.raises(BatchRefusedError):
        destination.publish(delivery)
    assert destination.claim(delivery, "split") == "split"
    destination.publish(child(delivery, 0))
    with pytest.raises(Rejected) as refused:
        destination.publish(child(delivery, 1))
    assert (refused.value.place, refused.value.nack.code) == (0, "kafka.too_large")
    destination.publish(child(delivery, 2))
    if strategy == "exactly-once":
        assert [len(m.value() or b"") for m in lab.server.read(topic)] == [10, 10]


def test_small_messages_whose_batch_is_too_large_for_their_topic(lab: KafkaLab) -> None:
    """The error says what to set, and that is enough."""
    topic = lab.server.topic(max_message_bytes="20000")
    records = [Record(i, {}, os.urandom(size)) for i, size in enumerate([5_000] * 20 + [18_976])]
    destination = lab.destination(topic, compression="none")
    with pytest.raises(BatchRefusedError, match="set batchBytes to 1,024 less"):
        lab.deliver(destination, records)
    lab.deliver(lab.destination(topic, compression="none", batchBytes="18976"), records)
    assert (len(lab.server.read(topic)), lab.refused) == (21, [])


@pytest.mark.parametrize("metadata", [{}, {"kafka.header.h": "1"}])
def test_a_staged_message_is_refused_once_batch_bytes_is_lowered(lab: KafkaLab, metadata: dict[str, str]) -> None:
    topic = lab.server.topic()
    delivery = lab.stage(lab.destination(topic), [Record(i, metadata, b"x" * (9_000 if i else 10)) for i in range(2)])
    destination = lab.destination(topic, batchBytes="2000")
    with pytest.raises(BatchRefusedError):
        destination.publish(delivery)
    with pytest.raises(Rejected) as refused:
        destination.publish(child(delivery, 1))
    assert refused.value.nack.code == "kafka.too_large"


def test_many_messages_with_little_room(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the client may hold at a time, by number and by bytes: none is lost, none overtakes another."""
    monkeypatch.setattr("conduit_dagster.connectors.kafka.message_sender._WAITING", 500)
    monkeypatch.setattr("conduit_dagster.connectors.kafka.message_sender._BYTES", 40_000)
    topic = lab.server.topic()
    destination = lab.destination(topic)
    destination.publish(lab.stage(destination, numbered(9_000), numbered(3_000), block=700))
    assert [value["i"] for value in lab.server.values(topic)] == [*range(9_000), *range(3_000)]


# -- once ---------------------------------------------------------------------------------------------------------


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
        ends = [high for _, high in cluster.whole(topic)]
        return any(ends) and list(cluster.known([topic])[topic].high) == ends

    with pytest.raises(TransientError) as error, at("mid-publish", lambda: wait_until(is_ended, "the brokers end it")):
        destination.publish(slow)
    assert error.value.code == "kafka.transaction_timeout" and "5s" in error.value.message
    assert lab.server.read(topic) == []
    destination.publish(slow)
    assert len(lab.server.read(topic)) == 3


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
        producer.abort_transaction(30)
    assert again.holds(delivery)
    again.publish(delivery)
    assert len(lab.server.read(topic)) == 3


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


def test_a_staged_message_as_a_dead_letter(lab: KafkaLab) -> None:
    destination = lab.destination(BY_COLLECTION)
    records = [Record(i, {"opencdc.collection": "ab"[i % 2]}, b"%d" % i, b"k%d" % i) for i in range(10)]
    delivery = lab.stage(destination, records[:6], records[6:], block=4)
    for place in range(10):
        row = destination.staged_row(delivery, place)
        assert (row.after, row.key) == (b"%d" % place, b"k%d" % place)


def test_sources_may_leave_out_no_key() -> None:
    """A message's partition follows from its key, whatever it is."""
    assert KafkaDestination.reads_keys is Keys.ALL


def test_acks_decide_what_can_be_kept() -> None:
    assert "exactly-once" in KafkaDestination.strategies_with({})
    assert KafkaDestination.strategies_with({"acks": "one"}) == {"at-most-once"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topic": "a b"}, "is not a topic's name"),
        ({"topic": "{{ .Nothing"}, "not closed"),
        ({"topic": "conduit-deliveries"}, "records can't go into deliveries-topic"),
        ({"deliveries-topic": ""}, "the name of the topic is empty"),
        ({"sdk.record.format": "xml"}, "unknown format"),
        ({"acks": "two"}, "all"),
        ({"linger": "2m"}, "linger must be shorter"),
        ({"deliveryTimeout": "1ms"}, "linger must be shorter"),
        ({"transaction-timeout": "10ms"}, "less than a second"),
    ],
)
def test_settings_that_can_not_be(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KafkaDestinationSettings.model_validate({"servers": "h:9092", **settings})
